"""Online decoding: what a step of many streams takes, and whether that stays so however long they are open.

    python benchmarks/streaming.py --models CTC RNNT TDT --manifest clips.jsonl --lm lm.arpa

The encoders run beforehand; a stream goes through all clips again and again, each stream from another one on, and is never
reset. A step takes a chunk (8 frames of 80 ms by default) of each stream and gives partials; "texts" is what reading their
texts takes on top. Decoders take turns, step by step, so that a change of the machine's mood hits all. Medians; "early" and
"late" are those of the first and the last quarter of the steps, "95" is the 95th percentile.
"""

from __future__ import annotations

import statistics
from typing import Any

import corpora
import measure
import torch
from recognisers import Heard, Recogniser

from hf_ngpulm import StreamingDecoder

WEIGHT, WARM_UP = 0.9, 10
BEAMS = (4, 8)


def main() -> None:
    parser = measure.arguments(__doc__, "streaming")
    parser.set_defaults(threads=2)
    parser.add_argument("--models", nargs="+", default=["ctc"], help="CTC models and transducers")
    parser.add_argument("--manifest", default="harbour", help="of the clips, or the name of a bundled corpus")
    parser.add_argument("--lm", default=str(corpora.SPEECH / "harbour" / "lm.arpa.gz"))
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=8, help="frames")
    parser.add_argument("--seconds", type=float, default=300.0, help="audio of each stream")
    parser.add_argument("--limit", type=int, help="only the first so many clips")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clips, runs = corpora.load(args.manifest, args.limit), []
    with torch.inference_mode():
        for name in args.models:
            recogniser = Recogniser(name, args.device)
            heard, lm = recogniser.hear(clips), recogniser.lm(args.lm)
            runs += [Run(heard, kind, {"lm": lm, **settings}, args) for kind, settings in searches(heard).items()]
        for step in range(WARM_UP + round(args.seconds / (args.chunk * runs[0].frame_seconds))):
            for run in runs:
                run.step(step)
    results = [run.result() for run in runs]
    print(measure.table(list(results[0]), [list(row.values()) for row in results]))
    facts = {"streams": args.streams, "chunk": args.chunk, "seconds": args.seconds}
    print("results in", measure.save(args.name, {**facts, "decoders": results}, args.out))


def searches(heard: Heard) -> dict[str, dict[str, Any]]:
    """Return settings of each decoder of a model."""
    if heard.recogniser.family == "CTC":
        fixed = {"lm_weight": WEIGHT, "frame_seconds": heard.seconds / sum(map(len, heard.rows))}
        return {f"beam {beams} + LM": {**fixed, "num_beams": beams} for beams in (1, *BEAMS)}
    fixed = {"lm_weight": WEIGHT, "ilm_weight": 0.0}
    found: dict[str, dict[str, Any]] = {"greedy + LM": {**fixed, "strategy": "greedy"}}
    for strategy in ("alsd",) if heard.recogniser.is_tdt else ("alsd", "aes"):
        name = strategy.upper()
        found |= {f"{name}++ {beams} + LM": {**fixed, "strategy": strategy, "num_beams": beams} for beams in BEAMS}
    return found


class Run:
    """Streams of one decoder, and the times of their steps."""

    def __init__(self, heard: Heard, name: str, settings: dict[str, Any], args: Any) -> None:
        decoder = heard.recogniser.decoder(**settings)
        self.model, self.name, self.chunk, self.device = heard.recogniser.name, name, args.chunk, args.device
        self.frame_seconds = decoder.frame_seconds
        self.frames = torch.cat(heard.rows)
        self.stream = StreamingDecoder(decoder, max_streams=args.streams)
        self.sids = [self.stream.open() for _ in range(args.streams)]
        begins = torch.tensor([0, *map(len, heard.rows)]).cumsum(0)
        self.at = begins[torch.linspace(0, len(heard.rows) - 1, args.streams).long()].tolist()
        self.steps: list[float] = []
        self.texts: list[float] = []

    def step(self, number: int) -> None:
        chunks = {}
        for place, sid in enumerate(self.sids):
            first = self.at[place] if self.at[place] + self.chunk <= len(self.frames) else 0
            chunks[sid] = self.frames[first : first + self.chunk]
            self.at[place] = first + self.chunk
        begin = measure.now(self.device)
        partials = self.stream.step(chunks)
        middle = measure.now(self.device)
        for partial in partials.values():
            assert isinstance(partial.text, str)
        if number >= WARM_UP:
            self.steps.append(middle - begin)
            self.texts.append(measure.now(self.device) - middle)

    def result(self) -> dict[str, Any]:
        milliseconds = [1e3 * seconds for seconds in self.steps]
        quarter, step = max(1, len(milliseconds) // 4), statistics.median(milliseconds)
        return {
            "model": self.model,
            "decoder": self.name,
            "step_ms": step,
            "step_ms_95": sorted(milliseconds)[int(0.95 * len(milliseconds))],
            "early_ms": statistics.median(milliseconds[:quarter]),
            "late_ms": statistics.median(milliseconds[-quarter:]),
            "texts_ms": 1e3 * statistics.median(self.texts),
            "share": step / 1e3 / (self.chunk * self.frame_seconds),
            "steps": len(milliseconds),
        }


if __name__ == "__main__":
    main()
