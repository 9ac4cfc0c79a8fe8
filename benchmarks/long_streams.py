"""What a chunk costs a stream that is never closed, from its first to its last: the time of a step, with and without the text.

    python benchmarks/long_streams.py [--chunks 100000] [--cases WORD ...] [--out FOLDER]

One stream of each kind of session goes round the bundled clips, in chunks of 8 encoder frames (0.64 s). Medians of the seconds
of CPU of the first and the last tenth of the chunks, of which every tenth asks for the text so far; and what the process has
come to take, resident, at a tenth of the chunks and at the end.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import measure
import torch
import turns

KINDS = {
    "ctc greedy": ("ctc", {}),
    "ctc beam 8": ("ctc", {"num_beams": 8}),
    "graph": ("graph", {}),
    "rnnt greedy": ("rnnt", {}),
    "rnnt ALSD 6": ("rnnt", turns.ALSD),
    "tdt greedy": ("tdt", {}),
    "tdt ALSD 6": ("tdt", turns.ALSD),
}


def stream_of(kind: str) -> tuple[Any, torch.Tensor]:
    """Return a streaming decoder of one stream, and the frames that it goes round."""
    from hf_ngpulm import CTCDecoder, GraphDecoder, StreamingDecoder, TransducerDecoder

    model, settings = KINDS[kind]
    of = "ctc" if model == "graph" else model
    loaded, rows = turns.rows_of(of)
    fusion: dict[str, Any] = {"lm": turns.lm_of(of), "lm_weight": turns.WEIGHT, "frame_seconds": 0.08, **settings}
    decoder: Any
    if model == "ctc":
        decoder = CTCDecoder(turns.processor_of(of), **fusion)
    elif model == "graph":
        decoder = GraphDecoder(turns.processor_of(of), **fusion)
    else:
        decoder = TransducerDecoder(loaded, turns.processor_of(of), ilm_weight=0.0, **fusion)
    return StreamingDecoder(decoder, max_streams=1), torch.cat(rows)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def follow(kind: str, chunks: int) -> dict[str, Any]:
    stream, frames = stream_of(kind)
    sid, size = stream.open(), turns.CHUNK
    tenth = chunks // 10
    steps: list[float] = []
    texts: list[float] = []
    at, memory = 0, 0.0
    for number in range(chunks):
        at = at + size if at + 2 * size <= len(frames) else 0
        begin = time.process_time()
        partial = stream.step({sid: frames[at : at + size]})[sid]
        steps.append(time.process_time() - begin)
        if number % 10 == 0:
            begin = time.process_time()
            text = partial.text
            texts.append(time.process_time() - begin)
        if number + 1 == tenth:
            memory = resident_mib()
    found: dict[str, Any] = {"kind": kind, "chunks": chunks, "tokens": len(partial.token_ids), "letters": len(text)}
    for what, seconds in (("step", steps), ("text", texts)):
        tenth = len(seconds) // 10
        for where, part in (("first", seconds[:tenth]), ("last", seconds[-tenth:])):
            found[f"{what}_ms_{where}_tenth"] = 1e3 * statistics.median(part)
    return found | {"resident_mib_at_a_tenth": memory, "resident_mib_at_the_end": resident_mib()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--cases", nargs="*", default=[], help="only those whose names contain one of these")
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rows = []
    for kind in KINDS:
        if not arguments.cases or any(word in kind for word in arguments.cases):
            rows.append(follow(kind, arguments.chunks))
            print(rows[-1], flush=True)
    print("results in", measure.save("long_streams", {"rows": rows}, arguments.out))


if __name__ == "__main__":
    main()
