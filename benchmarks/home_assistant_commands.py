"""Synthesised commands in Home Assistant's English sentences: how many are understood.

    python benchmarks/home_assistant_commands.py --models speech/models/ctc speech/models/tdt openai/whisper-tiny.en

Sentences are drawn from the grammar: first an intent, each as likely, then each choice in its templates, by the sampler that
tests hold to hassil's. They have 3 to 10 words, no digits and no words that may be skipped. The house has the names, areas and
floors below; where the templates have free words, a list has four. espeak-ng speaks in various voices
(examples/train_tiny_asr/speak.py). What is meant is the reading of the text. A command is whole if its intent and all slots are
right. Grammars: "lists" has the four words, "free" the free words of the templates.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import measure
import torch
from home_assistant import DATA
from transformers import pipeline

from hf_ngpulm import Grammar
from hf_ngpulm.grammar.templates import read_templates

sys.path.extend([str(measure.ROOT / "tests/support"), str(measure.ROOT / "examples/train_tiny_asr")])

from grammar_sentences import sentences
from speak import SAMPLING_RATE, random_voice, speak

HOUSE = {
    "name": ["kitchen light", "desk lamp", "fan", "coffee machine", "front door", "garage door", "heater", "speaker", "blinds"],
    "area": ["kitchen", "bedroom", "living room", "office"],
    "floor": ["ground floor", "first floor"],
}
WORDS = ["milk", "dinner", "pizza", "laundry"]


def plain(slots: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).casefold() for name, value in slots.items()}


def main() -> None:
    about = {"models": "folders or names of recognisers", "most": "number of commands"}
    options = {"models": (str,), "most": 100, "seed": 0, "modes": ("reject", "strict"), "grammars": ("lists", "free")}
    args = measure.arguments(__doc__, "home_assistant_commands", None, about, **options).parse_args()
    torch.set_num_threads(args.threads)
    contents = json.loads((DATA / "en.json").read_text(encoding="utf-8"))
    closed = HOUSE | {name: WORDS for name, entries in contents["lists"].items() if entries.get("wildcard")}
    grammars = {name: Grammar.from_templates(contents, lists=of) for name, of in (("lists", closed), ("free", HOUSE))}
    rules = read_templates({**contents, "skip_words": []}, closed)
    draw, grammar = random.Random(args.seed), grammars["lists"]
    meant: dict[str, Any] = {}
    for sentence in sentences(rules, draw):
        words = sentence.text.split()
        if 3 <= len(words) <= 10 and all(set(word.casefold()) <= set("abcdefghijklmnopqrstuvwxyz'-") for word in words):
            found = grammar.reading(sentence.text)
            said = {slot.name: " ".join(words[slot.first : slot.last]) for slot in found.slots}
            slots = {slot.name: said[slot.name] if slot.value is None else slot.value for slot in found.slots}
            meant.setdefault(sentence.text, {"intent": found.intent, "slots": plain(slots)})
        if len(meant) == args.most:
            break
    clips = [speak(text, random_voice(draw)).astype("float32") / 32_768 for text in meant]
    rows, results = [], {"commands": meant, "heard": {}}
    for name in args.models:
        asr = pipeline("automatic-speech-recognition", model=name)
        for which, mode in itertools.product(args.grammars, args.modes):
            begin = measure.now()
            settings = {"grammar": grammars[which], "grammar_mode": mode}
            heard = [asr({"raw": clip, "sampling_rate": SAMPLING_RATE}, **settings) for clip in clips]
            took = measure.now() - begin
            found = [(each["intent"], plain({slot["name"]: slot["value"] for slot in each["slots"]})) for each in heard]
            right = [intent == of["intent"] for (intent, _), of in zip(found, meant.values())]
            whole = [intent and slots == of["slots"] for intent, (_, slots), of in zip(right, found, meant.values())]
            row = {"model": Path(name).name, "grammar": which, "mode": mode, "commands": len(clips), "intents": sum(right)}
            row |= {"whole": sum(whole), "rejected": sum(not each["understood"] for each in heard), "seconds": round(took, 1)}
            rows.append(row)
            results["heard"][f"{Path(name).name} {which} {mode}"] = [each["text"] for each in heard]
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            path = measure.save(args.name, {"rows": rows, **results}, args.out)
    header = ["model", "grammar", "mode", "commands", "intents", "whole", "rejected", "seconds"]
    print(measure.table(header, [[row[name] for name in header] for row in rows]))
    print("results in", path)


if __name__ == "__main__":
    main()
