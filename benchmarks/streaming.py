"""Online decoding: what a step of many streams takes, and whether that stays so however long they are open.

    python benchmarks/streaming.py --ctc MODEL --transducers RNNT TDT --manifest clips.jsonl --lm lm.arpa

A manifest has a line {"audio": path, "text": transcript} per clip. The encoders run beforehand; a stream goes through all
clips again and again, each stream from another one on, and is never reset. A step takes a chunk (8 frames of 80 ms by default)
of each stream and gives partials; "texts" is what reading their texts takes on top. Decoders take turns, step by step, so that
a change of the machine's mood hits all. Medians; "early" and "late" are those of the first and the last quarter of the steps,
"95%" is the 95th percentile.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import encoded
import speech

from hf_ngpulm import CTCDecoder, StreamingDecoder, TransducerDecoder
from hf_ngpulm.language_model.loading import load_language_model

WEIGHT = 0.9
BEAMS = (4, 8)
WARM_UP = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ctc", help="a CTC model")
    parser.add_argument("--transducers", nargs="*", default=[], help="RNN-T and TDT models")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--lm", required=True)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=8, help="frames")
    parser.add_argument("--seconds", type=float, default=300.0, help="audio of each stream")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clips", type=int, help="take so many only")
    parser.add_argument("--name", default="streaming", help="name of the result file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    runs: list[Run] = []
    with torch.inference_mode():
        if args.ctc:
            runs += ctc_runs(args)
        for name in args.transducers:
            runs += transducer_runs(name, args)
        steps = WARM_UP + round(args.seconds / (args.chunk * runs[0].frame_seconds))
        for step in range(steps):
            for run in runs:
                run.step(step)
    results = [run.result() for run in runs]
    header = ["model", "decoder", "step, ms", "95%", "early", "late", "texts, ms", "share of real time"]
    names = ("step_ms", "step_ms_95", "early_ms", "late_ms", "texts_ms")
    print(
        measure.table(
            header,
            [[row["model"], row["decoder"], *(f"{row[name]:.2f}" for name in names), f"{row['share']:.2%}"] for row in results],
        )
    )
    facts = {"streams": args.streams, "chunk_frames": args.chunk, "threads": args.threads, "seconds": args.seconds}
    print("results in", measure.save(args.name, {**facts, "decoders": results}, args.out))


class Run:
    """Streams of one decoder, and the times of their steps.

    Args:
        rows: what the model makes of each clip, `[T, ...]`.
    """

    def __init__(self, model: str, name: str, decoder: Any, rows: list[torch.Tensor], args: argparse.Namespace) -> None:
        self.model, self.name, self.chunk, self.device = model, name, args.chunk, args.device
        self.frame_seconds = decoder.frame_seconds
        self.frames = torch.cat(rows)
        self.stream = StreamingDecoder(decoder, max_streams=args.streams)
        self.sids = [self.stream.open() for _ in range(args.streams)]
        begins = torch.tensor([len(row) for row in rows]).cumsum(0).roll(1)
        begins[0] = 0
        self.at = begins[torch.linspace(0, len(rows) - 1, args.streams).long()].tolist()
        self.steps: list[float] = []
        self.texts: list[float] = []

    def step(self, number: int) -> None:
        chunks = {}
        for place, sid in enumerate(self.sids):
            first = self.at[place] if self.at[place] + self.chunk <= len(self.frames) else 0
            chunks[sid] = self.frames[first : first + self.chunk]
            self.at[place] = first + self.chunk
        begin = speech.now(self.device)
        partials = self.stream.step(chunks)
        middle = speech.now(self.device)
        for partial in partials.values():
            assert isinstance(partial.text, str)
        if number >= WARM_UP:
            self.steps.append(middle - begin)
            self.texts.append(speech.now(self.device) - middle)

    def result(self) -> dict[str, Any]:
        quarter = max(1, len(self.steps) // 4)
        milliseconds = [1e3 * seconds for seconds in self.steps]
        step = statistics.median(milliseconds)
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


def ctc_runs(args: argparse.Namespace) -> list[Run]:
    outputs = speech.load(argparse.Namespace(**{**vars(args), "model": args.ctc, "batch_size": 16}))
    rows = outputs.rows()[: args.clips]
    frame_seconds = outputs.seconds / sum(map(len, outputs.rows()))
    runs = []
    for num_beams in (1, *BEAMS):
        name = "greedy + LM" if num_beams == 1 else f"beam {num_beams} + LM"
        decoder = CTCDecoder(
            outputs.processor, lm=outputs.lm, lm_weight=WEIGHT, num_beams=num_beams, frame_seconds=frame_seconds
        )
        runs.append(Run(Path(args.ctc).name, name, decoder, rows, args))
    return runs


def transducer_runs(model: str, args: argparse.Namespace) -> list[Run]:
    clips = encoded.load(model, args.manifest, args.device, (), args.clips)
    lm = load_language_model(args.lm, clips.processor.tokenizer, args.device)
    kinds: list[tuple[str, dict[str, Any]]] = [("greedy + LM", {"strategy": "greedy"})]
    kinds += [(f"ALSD++ {beams} + LM", {"strategy": "alsd", "num_beams": beams}) for beams in BEAMS]
    if not hasattr(clips.model.config, "durations"):
        kinds += [(f"AES++ {beams} + LM", {"strategy": "aes", "num_beams": beams}) for beams in BEAMS]
    runs = []
    for name, settings in kinds:
        decoder = TransducerDecoder(clips.model, clips.processor, lm=lm, lm_weight=WEIGHT, ilm_weight=0.0, **settings)
        runs.append(Run(clips.name, name, decoder, clips.rows, args))
    return runs


if __name__ == "__main__":
    main()
