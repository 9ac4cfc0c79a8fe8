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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
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


def drawn(contents: dict[str, Any], grammar: Grammar, closed: dict[str, list[str]], most: int, draw: Any) -> dict[str, Any]:
    """Return commands, and what they mean."""
    meant: dict[str, Any] = {}
    for sentence in sentences(read_templates({**contents, "skip_words": []}, closed), draw):
        words = sentence.text.split()
        if 3 <= len(words) <= 10 and all(set(word.casefold()) <= set("abcdefghijklmnopqrstuvwxyz'-") for word in words):
            found = grammar.reading(sentence.text)
            said = {slot.name: " ".join(words[slot.first : slot.last]) for slot in found.slots}
            slots = {slot.name: said[slot.name] if slot.value is None else slot.value for slot in found.slots}
            meant.setdefault(sentence.text, {"intent": found.intent, "slots": plain(slots)})
        if len(meant) == most:
            break
    return meant


def rows_of(args: Any, grammars: dict[str, Grammar], meant: dict[str, Any], draw: Any, texts: Any) -> Iterator[dict[str, Any]]:
    """Yield the row of each model, grammar and mode; what was heard goes into `texts`."""
    clips = [speak(text, random_voice(draw)).astype("float32") / 32_768 for text in meant]
    for name in args.models:
        asr = pipeline("automatic-speech-recognition", model=name)
        for which, mode in itertools.product(args.grammars, args.modes):
            begin = measure.now()
            settings = {"grammar": grammars[which], "grammar_mode": mode}
            heard = [asr({"raw": clip, "sampling_rate": SAMPLING_RATE}, **settings) for clip in clips]
            seconds = round(measure.now() - begin, 1)
            right = [each["intent"] == of["intent"] for each, of in zip(heard, meant.values())]
            slots = (plain({slot["name"]: slot["value"] for slot in each["slots"]}) for each in heard)
            whole = [intent and found == of["slots"] for intent, found, of in zip(right, slots, meant.values())]
            texts[f"{Path(name).name} {which} {mode}"] = [each["text"] for each in heard]
            row = {"model": Path(name).name, "grammar": which, "mode": mode, "commands": len(clips), "intents": sum(right)}
            rejected = sum(not each["understood"] for each in heard)
            yield row | {"whole": sum(whole), "rejected": rejected, "seconds": seconds}


def main() -> None:
    about = {"models": {"required": True, "help": "folders or names of recognisers"}, "most": "number of commands"}
    options = {"models": (str,), "most": 100, "modes": ("reject", "strict"), "grammars": ("lists", "free")}
    args = measure.arguments(__doc__, "home_assistant_commands", None, about, **options).parse_args()
    contents, draw = json.loads((DATA / "en.json").read_text(encoding="utf-8")), random.Random(0)
    closed = HOUSE | {name: WORDS for name, entries in contents["lists"].items() if entries.get("wildcard")}
    grammars = {name: Grammar.from_templates(contents, lists=of) for name, of in (("lists", closed), ("free", HOUSE))}
    facts: dict[str, Any] = {"commands": drawn(contents, grammars["lists"], closed, args.most, draw), "heard": {}}
    measure.report(rows_of(args, grammars, facts["commands"], draw, facts["heard"]), args, facts)


if __name__ == "__main__":
    main()
