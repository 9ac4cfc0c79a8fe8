"""Spelled names, numbers and dates by a grammar: how many recordings are right as a whole without it and with it.

    python benchmarks/real_speech/spelled.py an4.jsonl --models run/ctc run/tdt --frames frames_an4 --name real_spelled
    python benchmarks/real_speech/spelled.py speechocean.jsonl --digits --models run/ctc run/tdt --frames frames_so

Recordings of a manifest's split "test" (manifests.py). The grammar of AN4 is of what its train transcripts are: spelled words,
numbers, both after "rubout" or "erase", "enter" and a number, dates, and seven commands. With `--digits` only recordings of
three or more digits are taken, and the grammar is of any number of digits. A recording is right if its transcript is the
reference, without marks and case (Whisper's rules, digit by digit). `--frames` is as for commands.py. Rows: the transcript
without a grammar, the best sentence of the grammar, and what the mode "reject" returns with its default.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from commands import Understander
from families import Frames, corpora, measure, plain
from tasks import NAMES

from hf_ngpulm import Grammar
from hf_ngpulm.grammar.expressions import Choice, Optional, Repeat, Sequence

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


def rows_of(args: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of each model: without the grammar, in it, and in it if the evidence is enough."""
    grammar, clips = DIGITS if args.digits else AN4, corpora.load(args.manifest, split="test")
    frames = Frames(args.frames) if args.frames else None
    if args.digits:
        clips = [clip for clip in clips if len(clip.text.split()) > 2 and {*clip.text.split()} <= {*NAMES, "oh"}]
    clips = [clip for clip in clips if frames is None or clip.path in frames]
    covered = float(np.mean([grammar.reading(clip.text) is not None for clip in clips]))
    for model in args.models:
        understander = Understander(model, grammar, args.beams, args.batch_size)
        found = understander.understood(clips, frames)
        accepted = [each["evidence"] >= understander.bound for each in found]
        texts = {"free": [each["free_text"] for each in found], "strict": [each["text"] for each in found]}
        texts["reject"] = [inside if ok else free for ok, free, inside in zip(accepted, *texts.values())]
        for mode, transcripts in texts.items():
            right = np.array([plain(text) == plain(clip.text) for text, clip in zip(transcripts, clips)])
            row = {"model": Path(model).name, "beams": args.beams, "mode": mode, "recordings": len(right)}
            row |= {"right": float(right.mean()), "interval": measure.interval(right), "in the grammar": covered}
            yield row | {"understood": float(np.mean(accepted))}


def main() -> None:
    about = {"digits": "digits only", "models": "folders or Hub ids", "frames": "folders of Whisper's frames"}
    options: dict[str, Any] = {"models": (str,), "frames": (Path,), "digits": False, "batch_size": 16, "beams": 1}
    parser = measure.arguments(__doc__, "real_spelled", None, about, **options)
    parser.add_argument("manifest", type=Path)
    args = parser.parse_args()
    with torch.inference_mode():
        measure.report(rows_of(args), args)


if __name__ == "__main__":
    main()
