"""How long searches and queries would take on an H100, by a model of it: no time here is measured (`make gpu-static`).

    python benchmarks/modelled_times.py [--only WORD] [--lines] [--out FOLDER]

Needs neither a GPU nor a network. The tests' emulator runs kernels as compiled for sm_90, and a model of an H100 tells cycles
(`tests/support/ptx/timing.py`, with its sources; what it leaves out: CONTRIBUTING.md, "Kernels without a GPU"). Four rows
are emulated, for all sizes of batches: logits of which one class stands out in each frame, mostly the blank, the others
following a text; an LM of order 6 and 1.1 million n-grams that is made of such texts. CTC searches run through a whole clip of
15 s, as a beam's first frames, which it fills, cost three times as much as later ones. Of transducers two blocks of steps are
taken as often as a clip needs them. Where a program serves a row, a launch takes what the slowest of four takes. Launches are
counted and take 2.5 us each: more isn't counted of PyTorch's operators (the networks, with and without LM).

Beside a goal stands the least that the design allows: what launches alone take, or, of CTC searches, a clip of blanks alone.
What follows from that is in CONTRIBUTING.md.

Shares of the encoder are estimates. "published": NVIDIA's card of parakeet-tdt-0.6b-v2 tells of 3,380 s of audio a second, all
in all, on the Open ASR leaderboard, whose GPU is an A100; an H100 is taken to be twice as fast. "arithmetic": the least that is
possible, if the products of 0.6 billion parameters take half of what an H100 can do.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ["HF_NGPULM_GPU_STAND_IN"] = "1"  # measure.py installs the emulator
os.environ["HF_NGPULM_ENGINE"] = "gpu"

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import launches
import lm_queries
import numpy as np
import ptx
import random_models
from ptx import timing
from torch.utils._python_dispatch import TorchDispatchMode

from hf_ngpulm import NGramLM, NGramLogitsProcessor
from hf_ngpulm.automaton import gpu as queries
from hf_ngpulm.automaton.tensors import AutomatonTensors
from hf_ngpulm.search.attention_step import gpu as attention
from hf_ngpulm.search.ctc_beam.gpu import ctc_beam
from hf_ngpulm.search.ctc_greedy.gpu import ctc_greedy
from hf_ngpulm.search.networks.buffers import STEPS
from hf_ngpulm.search.networks.model import TransformersTransducer
from hf_ngpulm.search.networks.opening import search_kind
from hf_ngpulm.search.networks.search import SearchSettings

PARAKEET, WHISPER = 1024, 51_865  # tokens; CTC models and transducers have a blank besides
BATCHES, GOAL_BATCH = (1, 32, 128), 32
SECONDS, FRAMES = 15, 188
EMULATED_ROWS, EMULATED_BLOCKS = 4, 2
SAID = 0.25  # of the frames
RTFX, FASTER = 3380, 2  # published, see above
ARITHMETIC = 2 * 0.6e9 * FRAMES / (989e12 / 2)  # seconds a clip
COUNTS = ("barriers", "sectors", "to_l2", "from_dram")
GREEDY, GREEDY_LM, ALSD = "TDT label looping", "TDT label looping + LM", "TDT ALSD++ 6 + LM"
SHARES = {"CTC greedy + LM": 1.0, "CTC beam 8 + LM": 3.0}  # goals: percent of the encoder, at `GOAL_BATCH`
CERTAIN, SILENT = (12.0, 30.0), ", silent"  # logits of classes that stand out, in clips and in silent ones
MORE, TIMES = 2.0, 1.3  # percent more of encoder and search with an LM; ALSD++ over label looping without LM
Forget = Callable[[], Any]


@dataclass
class Workload:
    """What is emulated.

    Args:
        call: launches kernels; returns how often it would for a clip. It is given what forgets the launches so far.
        facts: what a row of the results of `benchmarks/gpu.py` is known by.
        rows, frames: that are emulated; steps, where there are no frames.
    """

    name: str
    vocab_size: int
    call: Callable[[Forget], float]
    facts: dict[str, Any]
    rows: int = EMULATED_ROWS
    frames: int = 1
    batches: tuple[int, ...] = BATCHES


class Operators(launches.Launches):
    """Counts launches of PyTorch's operators; Triton's kernels run."""

    __enter__, __exit__ = TorchDispatchMode.__enter__, TorchDispatchMode.__exit__


def main() -> None:
    about = {"only": "workloads whose name contains it", "lines": "lines at which warps spend their cycles"}
    args = measure.arguments(__doc__, "modelled_times", None, about, threads=None, only="", lines=False).parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    rows: list[dict[str, Any]] = []
    for workload in workloads(args.only):
        with Operators() as operators, ptx.timed() as ran:
            repeats = workload.call(lambda: (ran.clear(), operators.names.clear()))
        rows += [row_of(workload, batch_size, ran, operators.total, repeats) for batch_size in workload.batches]
        for each in {each.name: each for each in ran}.values() if args.lines else ():
            print(f"\n{workload.name}, V = {workload.vocab_size}, {each.name}: modelled cycles of warps")
            print("\n".join(f"{100 * share:6.1f}%  {place}" for share, place in each.timed.lines()))
    print(f"modelled times on an H100 at {timing.CLOCK / 1e9} GHz; instructions (of warps) ff.: of a row in a frame or step")
    print(measure.table([line for row in rows for line in lines_of(row)]))
    print("\n".join(goals({row["workload"]: row for row in rows if row["batch_size"] == GOAL_BATCH})))
    print("results in", measure.save(args.name, {"rows": rows}, args.out))


def row_of(workload: Workload, batch_size: int, ran: list[Any], operators: int, repeats: float) -> dict[str, Any]:
    """Return a row of the results: the time for a clip's whole batch, and its kernels."""
    kernels: dict[str, dict[str, Any]] = {}
    for launch in ran:
        counts = launch.timed.counts
        cycles = launch.timed.cycles(counts.programs * batch_size / workload.rows)
        found = {"launches": repeats, "modelled_seconds": repeats * cycles / timing.CLOCK}
        of_each = {"instructions": launch.instructions[0]} | {name: getattr(counts, name) for name in COUNTS}
        found |= {name: count / (workload.rows * workload.frames) for name, count in of_each.items()}
        kernel = kernels.setdefault(launch.name, {"kernel": launch.name} | dict.fromkeys(found, 0.0))
        for name, value in found.items():
            kernel[name] += value
    launched = repeats * (operators + len(ran))
    seconds = launched * timing.LAUNCH + sum(kernel["modelled_seconds"] for kernel in kernels.values())
    facts = {"vocab_size": workload.vocab_size, "batch_size": batch_size, **workload.facts}
    figures = {"launches": launched, "modelled_seconds": seconds, "kernels": [*kernels.values()]}
    return {"workload": workload.name, **facts, **figures}


def encoder_seconds(batch_size: int) -> tuple[float, float]:
    """Return estimates of an encoder's time for a batch of clips: as published, and the least by its arithmetic."""
    return SECONDS * batch_size / RTFX / FASTER, ARITHMETIC * batch_size


def lines_of(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield lines of the table: of a row, and, where the goals are or there are no others, of its kernels."""
    line = {"workload": row["workload"], "V": row["vocab_size"], "batch": row["batch_size"], "kernel": ""}
    line |= {"launches": round(row["launches"]), "modelled us": round(1e6 * row["modelled_seconds"])}
    if "frames" in row and row["batch_size"] > 1:
        for name, seconds in zip(("published", "arithmetic"), encoder_seconds(row["batch_size"])):
            line[f"% of {name}"] = 100 * row["modelled_seconds"] / seconds
    yield line
    for kernel in row["kernels"] if row["batch_size"] == GOAL_BATCH else ():
        line = {"kernel": kernel["kernel"], "launches": round(kernel["launches"])}
        line["modelled us"] = round(1e6 * kernel["modelled_seconds"], 1)
        yield line | {name: round(kernel[name]) for name in ("instructions", *COUNTS)}


def goals(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield what becomes of the goals, given the rows of workloads."""
    encoder = encoder_seconds(GOAL_BATCH)[0]
    seconds = {name: row["modelled_seconds"] for name, row in rows.items()}
    found = [
        (f"{name}, % of the encoder", *(100 * seconds[each] / encoder for each in (name, name + SILENT)), limit)
        for name, limit in SHARES.items()
        if name in seconds
    ]
    if seconds.keys() >= {GREEDY, GREEDY_LM, ALSD}:
        more = 100 * ((encoder + seconds[GREEDY_LM]) / (encoder + seconds[GREEDY]) - 1)
        found.append((f"{GREEDY_LM}, % more than without LM, encoder and search", more, 0.0, MORE))
        least = rows[ALSD]["launches"] * timing.LAUNCH / seconds[GREEDY]
        found.append((f"{ALSD}, over label looping", seconds[ALSD] / seconds[GREEDY], least, TIMES))
    for what, value, least, limit in found:
        verdict = "ok" if value <= limit else "MISSED"
        yield f"modelled, batch {GOAL_BATCH}: {what}: {value:.3g} (at least {least:.3g}), should be <= {limit:g}: {verdict}"


# ---- workloads


def workloads(only: str) -> Iterator[Workload]:
    for vocab_size, kinds in (
        (PARAKEET, {"query": of_queries, "CTC": of_ctc, "TDT": of_transducers}),
        (WHISPER, {"query": of_queries, "processor": of_processor}),
    ):
        kinds = {name: make for name, make in kinds.items() if name in only or only in name or only.startswith(name)}
        if kinds:
            lm = lm_queries.build_model(vocab_size, 6)
            text = torch.from_numpy(lm_queries.text_of(lm, lm_queries.NGRAMS)).long()
        for make in kinds.values():
            yield from (workload for workload in make(lm, text) if only in workload.name)


def warm(call: Callable[[], Any], rows: int, batch_size: int, forget: Forget) -> float:
    """Call twice, the first time to fill L2, with tiles as they are on an H100 for so many rows."""
    queries.processors = attention.processors = lambda device: round(timing.PROCESSORS * rows / batch_size)
    call()
    forget()
    call()
    return 1.0


def of_queries(lm: NGramLM, text: Any) -> Iterator[Workload]:
    for query in ("scores", "advance"):
        for batch_size in BATCHES:
            rows = min(batch_size, EMULATED_ROWS)
            call = partial(getattr(lm, query), lm_queries.states_of(lm, text.numpy(), rows, 0))
            facts = {"device": "cuda", "order": lm.order, "query": query}
            call = partial(warm, call, rows, batch_size)
            yield Workload(f"query {query}", lm.vocab_size, call, facts, rows, batches=(batch_size,))


class Whisper:
    """What a processor asks a model for."""

    class config:
        model_type, is_encoder_decoder, eos_token_id, decoder_start_token_id = "speech_to_text", True, WHISPER, WHISPER

    generation_config = None
    modules = list


def of_processor(lm: NGramLM, text: Any) -> Iterator[Workload]:
    for batch_size in BATCHES:
        rows = min(batch_size, EMULATED_ROWS)
        ids = torch.cat([torch.full((rows, 1), WHISPER), text[: 20 * rows].view(rows, 20)], 1)
        call = partial(NGramLogitsProcessor(lm, 0.3, model=Whisper()), ids, torch.randn(rows, WHISPER + 1))
        call = partial(warm, call, rows, batch_size)
        yield Workload("processor, a token", WHISPER, call, {"ways": "processor"}, rows, batches=(batch_size,))


def of_ctc(lm: NGramLM, text: Any) -> Iterator[Workload]:
    rows, frames = EMULATED_ROWS, FRAMES
    drawn, noise = torch.rand(rows, frames, 1), torch.randn(rows, frames, PARAKEET + 1)
    lengths = torch.full((rows,), frames, dtype=torch.int32)
    for share, ending, logit in zip((SAID, 0.0), ("", SILENT), CERTAIN):
        said = torch.where(drawn < share, text[: rows * frames].view(rows, frames, 1), PARAKEET)
        logits = noise.scatter_add(2, said, torch.full(said.shape, logit)).bfloat16()
        for name, function, arguments in (
            ("greedy + LM", ctc_greedy, random_models.greedy_search(lm, logits, lengths).args[1:]),
            ("beam 8 + LM", ctc_beam, random_models.beam_search(lm, logits, lengths, 8, math.inf).args[1:]),
        ):
            call = partial(once, partial(function, AutomatonTensors(*lm.tensors), *arguments))
            yield Workload(f"CTC {name}{ending}", PARAKEET, call, {"search": name + ending, "frames": frames}, frames=frames)


def once(call: Callable[[], Any], forget: Forget) -> float:
    call()
    return 1.0


def of_transducers(lm: NGramLM, text: Any) -> Iterator[Workload]:
    torch.manual_seed(0)  # the same with and without `--only`
    rows, steps = EMULATED_ROWS, EMULATED_BLOCKS * STEPS
    sizes = random_models.REAL._replace(encoder="tiny")
    os.environ["HF_NGPULM_ENGINE"] = "cpu"  # greedy search, for the bias of the blank
    lengths = [SECONDS * random_models.FEATURES_A_SECOND] * rows
    networks = TransformersTransducer(random_models.random_clips("TDT", lengths, 1, "cpu", sizes).recogniser.model)
    os.environ["HF_NGPULM_ENGINE"] = "gpu"
    frames = torch.randn(rows, FRAMES, sizes.decoder_width)
    launches.BATCH_SIZE = rows
    blocks_of: dict[str, int] = {}  # greedily, with an LM and without, random frames say as many tokens

    def call(settings: SearchSettings, followed: NGramLM | None, forget: Forget) -> float:
        models = launches.models_of(followed)._replace(ilm_weights=None)
        search = search_kind(settings, "gpu", frames.device)(networks, frames, rows, models, settings)
        search.begin(np.arange(rows), models)
        search.frames = frames
        search.limit(torch.full((rows,), FRAMES), torch.zeros(rows, dtype=torch.int64))
        forget()
        for _ in range(EMULATED_BLOCKS):
            search.block()
        needed = math.ceil(FRAMES / float(search.beam.times[:, 0].float().mean()) * EMULATED_BLOCKS)
        return blocks_of.setdefault(settings.strategy, needed) / EMULATED_BLOCKS

    for name, decoder, settings, followed in (
        (GREEDY, "greedy", SearchSettings(1, "greedy"), None),
        (GREEDY_LM, "greedy + LM", SearchSettings(1, "greedy"), lm),
        (ALSD, "ALSD 6 + LM", SearchSettings(6, "alsd"), lm),
    ):
        facts = {"model": "TDT", "decoder": decoder, "frames": FRAMES}
        yield Workload(name, PARAKEET, partial(call, settings, followed), facts, frames=steps)


if __name__ == "__main__":
    main()
