"""Spelled names, numbers and dates by a grammar: how many recordings are right as a whole without it and with it.

    python benchmarks/real_speech/spelled.py an4.jsonl --models run/ctc run/tdt --frames frames_an4 --name real_spelled
    python benchmarks/real_speech/spelled.py speechocean.jsonl --digits --models run/ctc run/tdt --frames frames_so

Recordings of a manifest's split "test" (manifests.py). The grammar of AN4 is of what its train transcripts are: spelled words,
numbers, both after "rubout" or "erase", "enter" and a number, dates, and seven commands. With `--digits` only recordings of
three or more digits are taken, and the grammar is of any number of digits. A recording is right if its transcript is the
reference, without marks and case (Whisper's rules, digit by digit). `--frames` is as for commands.py. Rows: the transcript
without a grammar, the best sentence of the grammar, and what the mode "reject" returns with its default. `--betas` are bonuses
per token of CTC models (with 4 beams), beside the default.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
from commands import Understander
from corpora import RATE
from families import plain
from tasks import NAMES, interval

from hf_ngpulm import Grammar
from hf_ngpulm.grammar.expressions import Choice, Optional, Repeat, Sequence
from hf_ngpulm.sound.files import read_audio

LETTERS = Repeat(Choice(*"abcdefghijklmnopqrstuvwxyz", "apostrophe"), 1)
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NUMBERS = Repeat(Choice(*NAMES, "oh", *TEENS, *TENS, "hundred", "thousand", "and"), 1)
MONTHS = Choice(
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"
)
UNITS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"]
ORDINALS = Choice(
    *UNITS, "tenth", "eleventh", "twelfth", *(f"{teen}th" for teen in TEENS[3:]), "twentieth", "thirtieth",
    *(f"{ten} {unit}" for ten in TENS[:2] for unit in UNITS),
)  # fmt: skip
AN4 = Grammar({
    "spell": LETTERS,
    "number": Sequence(Optional(Choice("enter", "area code")), NUMBERS),
    "code": Sequence(Optional(Choice("rubout", "erase")), LETTERS, NUMBERS),
    "date": Choice(Sequence(MONTHS, ORDINALS, Optional(NUMBERS)), Sequence(ORDINALS, Optional("of"), MONTHS, Optional(NUMBERS)),
                   Sequence(NUMBERS, MONTHS, Optional(NUMBERS))),
    "command": ["yes", "no", "go", "stop", "start", "repeat", "help"],
})  # fmt: skip
DIGITS = Grammar({"digits": Repeat(Choice(*NAMES, "oh"), 1)})


def main() -> None:
    about = {"digits": "digits only", "models": "folders or Hub ids", "frames": "folders of Whisper's frames"}
    options: dict[str, Any] = {"models": (str,), "frames": (Path,), "digits": False, "batch_size": 16, "beams": 1, "every": 1}
    options |= {"betas": (float,)}
    parser = measure.arguments(__doc__, "real_spelled", None, about, **options)
    parser.add_argument("manifest", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lines = [line for line in map(json.loads, args.manifest.read_text().splitlines()) if line["split"] == "test"]
    if args.digits:
        lines = [line for line in lines if len(line["text"].split()) > 2 and {*line["text"].split()} <= {*NAMES, "oh"}]
    grammar, rows = DIGITS if args.digits else AN4, list[dict[str, Any]]()
    for model in args.models:
        args.model = model
        understander = Understander(args, grammar)
        known = [line for line in lines if not args.frames or str(args.manifest.parent / line["audio"]) in understander.index]
        paths = [str(args.manifest.parent / line["audio"]) for line in known[:: args.every]]
        with torch.inference_mode():
            if args.frames:
                heard = understander.topped(list(map(understander.frames_of, paths)))
            else:
                heard = understander.heard([read_audio(path, RATE) for path in paths], None)
        betas = [None, *(args.betas or ())] if understander.recogniser.family == "CTC" else [None]
        said = [plain(line["text"]) for line in known[:: args.every]]
        covered = float(np.mean([grammar.reading(line["text"]) is not None for line in known[:: args.every]]))
        for beta in betas:
            settings = {} if beta is None else {"beta": beta, "num_beams": 4}
            with torch.inference_mode():
                found = understander.understand(heard, args.beams, None, **settings)
            accepted = [each["evidence"] >= understander.middle for each in found]
            texts = {"free": [each["free_text"] for each in found], "strict": [each["text"] or "" for each in found]}
            texts["reject"] = [inside if ok else free for ok, free, inside in zip(accepted, *texts.values())]
            for mode, transcripts in texts.items():
                right = np.array([plain(text) == wanted for text, wanted in zip(transcripts, said)])
                row = {"model": Path(model).name, "beams": args.beams, "beta": beta, "mode": mode, "recordings": len(right)}
                row |= {"right": float(right.mean()), "interval": interval(right), "in the grammar": covered}
                rows.append(row | {"understood": float(np.mean(accepted))})
                path = measure.save(args.name, {"rows": rows}, args.out)
    header = ["model", "beta", "mode", "recordings", "right", "interval", "in the grammar", "understood"]
    print(measure.table(header, [[row[name] for name in header] for row in rows]))
    print("results in", path)


if __name__ == "__main__":
    main()
