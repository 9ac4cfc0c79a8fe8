"""How long the searches would take on an H100, by a model of it: no time here is measured (`make gpu-static`).

    python benchmarks/modelled_times.py [--only WORD] [--lines] [--out FOLDER]

Needs neither a GPU nor a network. Kernels run in the tests' emulator, as compiled for sm_90, and a model of an H100 tells the
cycles (`tests/support/ptx/timing.py`, with its sources; what it leaves out: CONTRIBUTING.md, "Kernels without a GPU"). Few rows
and frames are emulated: logits of which one class stands out in each frame, mostly the blank, the others following a text; an
LM of order 6 and 1.1 million n-grams that is made of such texts. Times for a clip of 15 s grow with frames and steps; a kernel
with a program per row takes what the slowest of the emulated rows takes, whatever the batch. Launches are counted and take 2.5
us each, all that PyTorch's operators take. Frames and steps are those of Parakeet: 80 ms each.

The share of an encoder is an estimate: NVIDIA's card of parakeet-tdt-0.6b-v2 says 3,380 s of audio a second on the Open ASR
leaderboard, on an A100, for everything. An H100 is taken to be twice as fast. "arithmetic": the least that the encoder may
take, if its products use half of what an H100 can do. `--lines` tells the lines at which warps spend their cycles.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import measure

os.environ["HF_NGPULM_ENGINE"] = "gpu"
measure.GPU = "cpu"
sys.path[:0] = [str(measure.ROOT), str(measure.ROOT / "tests" / "support")]
import ptx

ptx.install()

import gpu_ctc
import launches
import lm_queries
import torch
import transducer_random
from ptx import timing
from torch.utils._python_dispatch import TorchDispatchMode

from hf_ngpulm import NGramLM, NGramLogitsProcessor, TransducerDecoder
from hf_ngpulm.automaton import gpu as queries
from hf_ngpulm.automaton.tensors import AutomatonTensors
from hf_ngpulm.fusion.fusion import no_models
from hf_ngpulm.search import ctc_graph
from hf_ngpulm.search.attention_step import gpu as attention
from hf_ngpulm.search.ctc_beam import gpu as ctc_beam
from hf_ngpulm.search.ctc_graph import gpu as ctc_graph_gpu
from hf_ngpulm.search.ctc_greedy import gpu as ctc_greedy
from hf_ngpulm.search.networks.model import TransformersTransducer
from hf_ngpulm.search.transducer_beam import BeamSettings
from hf_ngpulm.search.transducer_beam import tensors as transducer_beam
from hf_ngpulm.search.transducer_greedy import WINDOW, looping_of
from hf_ngpulm.search.transducer_greedy.rows import Rules

PARAKEET, WHISPER = 1024, 51_865  # tokens; CTC models and transducers have a blank besides
BATCHES = (1, 32, 128)
SECONDS, FRAMES = 15, 188
EMULATED_ROWS, EMULATED_FRAMES, EMULATED_BLOCKS = 4, 24, 2
SAID = 0.25  # of the frames
PER_FRAME = ("_best_kernel", "_peaks_kernel")  # a program for each frame; other kernels walk along them
RTFX, FASTER = 3380, 2  # see above
PARAMETERS, ARITHMETIC = 0.6e9, 989e12  # of the encoder; products and sums a second in bfloat16
MOST_SHARE = {"CTC greedy + LM": 1.0, "CTC beam 8 + LM": 3.0}  # percent of the encoder at a batch of 32
MOST_MORE = {"TDT label looping + LM": 2.0}  # percent more time of encoder and search than without LM
MOST_TIMES = {"TDT ALSD++ 6 + LM": 1.3}  # times what label looping without LM takes
GOAL_BATCH = 32


@dataclass
class Workload:
    """What is emulated once, for all batches (or for one).

    Args:
        call: launches the kernels of `EMULATED_ROWS` rows; returns how often that is done for a clip.
        longer: how many times as many frames a clip has.
        frames: of a row that are emulated; steps, where there are none.
        facts: what a row of the results of `benchmarks/gpu.py` is known by.
    """

    name: str
    vocab_size: int
    call: Callable[[], float]
    facts: dict[str, Any]
    longer: float = 1.0
    frames: int = 1
    rows: int = EMULATED_ROWS
    batches: tuple[int, ...] = BATCHES


class Operators(launches.Launches):
    """Counts launches of PyTorch's operators; kernels run."""

    __enter__, __exit__ = TorchDispatchMode.__enter__, TorchDispatchMode.__exit__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="workloads whose name contains it")
    parser.add_argument("--lines", action="store_true", help="where warps spend their cycles")
    parser.add_argument("--out", type=Path, help="folder for the JSON results (default: benchmarks/results)")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    rows = []
    for workload in workloads(args.only):
        found, ran = modelled(workload)
        rows += found
        for each in {each.name: each for each in ran}.values() if args.lines else ():
            print(f"\n{workload.name}, V = {workload.vocab_size}: {each.name}")
            print("\n".join(f"{100 * share:6.1f}%  {place}" for share, place in each.timed.lines()))
    print(f"modelled times on an H100 at {timing.CLOCK / 1e9} GHz; shares are estimates; instructions of warps, per row and frame")
    print(measure.table(*cells(rows)))
    kernels = [
        [row["workload"], row["vocab_size"], row["batch_size"], *kernel.values()]
        for row in rows
        if row["batch_size"] in (GOAL_BATCH, row["batches"][-1])
        for kernel in row["kernels"]
    ]
    print("\n" + measure.table(["workload", "V", "batch", *rows[0]["kernels"][0]], kernels))
    print("\n".join(goals(rows)))
    print("results in", measure.save("modelled_times", {"clock": timing.CLOCK, "rows": rows}, args.out))


def modelled(workload: Workload) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return rows of the results, one for each batch, and the launches."""
    with Operators() as operators, ptx.timed() as ran:
        repeats = workload.call()
        operators_ = operators.total
    found = []
    for batch_size in workload.batches:
        kernels: dict[str, dict[str, Any]] = {}
        for launch in ran:
            per_frame = launch.name in PER_FRAME
            counts, of = launch.timed.counts, workload.rows * workload.frames
            programs = counts.programs * batch_size / workload.rows * (workload.longer if per_frame else 1)
            seconds = repeats * launch.timed.cycles(programs) / timing.CLOCK * (1 if per_frame else workload.longer)
            kernel = kernels.setdefault(launch.name, dict.fromkeys(
                ("kernel", "launches", "us", "us a launch", "instructions", "barriers", "sectors", "from L2", "from DRAM"), 0
            ))  # fmt: skip
            kernel["kernel"] = launch.name
            for name, value in (
                ("launches", repeats), ("us", 1e6 * seconds), ("instructions", launch.instructions[0] / of),
                ("barriers", counts.barriers / of), ("sectors", counts.sectors / of), ("from L2", counts.to_l2 / of),
                ("from DRAM", counts.from_dram / of),
            ):  # fmt: skip
                kernel[name] += value
        for kernel in kernels.values():
            kernel["us a launch"] = kernel["us"] / kernel["launches"]
        launched = repeats * (operators_ + len(ran))
        seconds = launched * timing.LAUNCH + sum(kernel["us"] for kernel in kernels.values()) / 1e6
        facts = {"vocab_size": workload.vocab_size, "batch_size": batch_size, **workload.facts}
        found.append({"workload": workload.name, **facts, "launches": launched, "seconds": seconds, "kernels": [*kernels.values()],
                      "batches": workload.batches})  # fmt: skip
    return found, ran


def encoder_seconds(batch_size: int) -> tuple[float, float]:
    """Return estimates of an encoder's time for a batch of clips: as published, and the least by its arithmetic."""
    published = SECONDS * batch_size / RTFX / FASTER
    return published, 2 * PARAMETERS * FRAMES * batch_size / (ARITHMETIC / 2)


def cells(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    header = ["workload", "V", "batch", "launches", "modelled us", "% of encoder", "% of arithmetic"]
    header += ["instructions", "barriers", "sectors"]
    table = []
    for row in rows:
        shares = ["", ""]
        if "frames" in row and row["batch_size"] > 1:
            shares = [f"{100 * row['seconds'] / seconds:.2f}" for seconds in encoder_seconds(row["batch_size"])]
        sums = [f"{sum(kernel[name] for kernel in row['kernels']):.0f}" for name in ("instructions", "barriers", "sectors")]
        line = [row["workload"], row["vocab_size"], row["batch_size"], round(row["launches"]), f"{1e6 * row['seconds']:.0f}"]
        table.append([*line, *shares, *sums])
    return header, table


def goals(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what becomes of the goals."""
    times = {row["workload"]: row["seconds"] for row in rows if row["batch_size"] == GOAL_BATCH}
    encoder = encoder_seconds(GOAL_BATCH)[0]
    for name, limit in MOST_SHARE.items():
        if name in times:
            yield told(f"{name}, batch {GOAL_BATCH}, of the encoder", 100 * times[name] / encoder, limit, "%")
    base = times.get("TDT label looping")
    for name, limit in MOST_MORE.items() if base else ():
        if name in times:
            more = 100 * ((encoder + times[name]) / (encoder + base) - 1)
            yield told(f"{name}, batch {GOAL_BATCH}, encoder and search over those without LM", more, limit, "% more")
            yield f"modelled: {name}, search alone over that without LM: {times[name] / base:.3f} x"
    for name, limit in MOST_TIMES.items() if base else ():
        if name in times:
            yield told(f"{name}, batch {GOAL_BATCH}, over label looping", times[name] / base, limit, "x")


def told(what: str, value: float, limit: float, unit: str) -> str:
    return f"modelled: {what}: {value:.3g}{unit}, should be <= {limit:g}: {'ok' if value <= limit else 'MISSED'}"


# ---- workloads


def workloads(only: str) -> Iterator[Workload]:
    lms = {}
    for name, vocab_size, make in (
        ("query", PARAKEET, of_queries), ("query", WHISPER, of_queries), ("processor", WHISPER, of_processor),
        ("CTC", PARAKEET, of_ctc), ("TDT", PARAKEET, of_transducers),
    ):  # fmt: skip
        if only and name not in only and only not in name:
            continue
        if vocab_size not in lms:
            lm = lm_queries.build_model(vocab_size, 6)
            lms[vocab_size] = lm, lm_queries.text_of(lm, lm_queries.NGRAMS)
        yield from (workload for workload in make(*lms[vocab_size]) if only in workload.name)


def as_if(batch_size: int, rows: int) -> None:
    """Have kernels tile rows as they do on an H100 if there are so many."""
    queries.processors = attention.processors = lambda device: round(timing.PROCESSORS * rows / batch_size)


def of_queries(lm: NGramLM, text: Any) -> Iterator[Workload]:
    for query in ("scores", "advance"):
        for batch_size in BATCHES:
            rows = min(batch_size, EMULATED_ROWS)
            states = lm_queries.states_of(lm, text, rows, 0)
            facts = {"device": "cuda", "order": lm.order, "query": query}

            def call(query: str = query, batch_size: int = batch_size, states: Any = states) -> float:
                as_if(batch_size, len(states))
                return again(partial(getattr(lm, query), states))

            yield Workload(f"query {query}", lm.vocab_size, call, facts, rows=rows, batches=(batch_size,))


def again(call: Callable[[], Any]) -> float:
    """Call twice, the first time to fill L2."""
    call()
    forget()
    call()
    return 1.0


def forget() -> None:
    """Don't count what was launched so far."""
    ptx.driver._observers[-1].clear()
    torch.utils._python_dispatch._get_current_dispatch_mode().names.clear()


class Whisper:
    """What a processor asks a model for."""

    class config:
        model_type, is_encoder_decoder, eos_token_id, decoder_start_token_id = "speech_to_text", True, WHISPER, WHISPER

    generation_config = None

    def modules(self) -> list[Any]:
        return []


def of_processor(lm: NGramLM, text: Any) -> Iterator[Workload]:
    for batch_size in BATCHES:
        rows = min(batch_size, EMULATED_ROWS)
        ids = torch.from_numpy(text[: 20 * rows].reshape(rows, 20).copy())
        ids[:, 0] = WHISPER
        scores = torch.randn(rows, WHISPER + 1)
        processor = NGramLogitsProcessor(lm, 0.3, model=Whisper())

        def call(batch_size: int = batch_size, rows: int = rows, ids: Any = ids, scores: Any = scores, of: Any = processor) -> float:
            as_if(batch_size, rows)
            return again(lambda: of(ids, scores.clone()))

        yield Workload("processor, a token", WHISPER, call, {"ways": "processor"}, rows=rows, batches=(batch_size,))


def of_ctc(lm: NGramLM, text: Any) -> Iterator[Workload]:
    size = (EMULATED_ROWS, EMULATED_FRAMES)
    logits = torch.randn(*size, PARAKEET + 1)
    said = torch.from_numpy(text[: size[0] * size[1]].copy()).view(*size, 1)
    said = torch.where(torch.rand(said.shape) < SAID, said, PARAKEET)
    logits = logits.scatter_add_(2, said, torch.full(said.shape, 12.0)).bfloat16()
    lengths = torch.full(size[:1], size[1], dtype=torch.int32)
    greedy, beam = gpu_ctc.greedy_search(lm, logits, lengths), gpu_ctc.beam_search(lm, logits, lengths, 8, float("inf"))
    weights = torch.full((size[0], 1), gpu_ctc.LM_WEIGHT)
    state = ctc_graph.initial_state(64, lm.initial_states(size[0])[:, None].contiguous())
    graph = (state, logits, lengths, weights, torch.zeros(size[0], PARAKEET + 1), PARAKEET, PARAKEET, 20.0, float("inf"))
    for name, search, function, arguments in (
        ("CTC greedy + LM", "greedy + LM", ctc_greedy.ctc_greedy, greedy.args[1:]),
        ("CTC beam 8 + LM", "beam 8 + LM", ctc_beam.ctc_beam, beam.args[1:]),
        ("CTC graph 64 + LM", "graph 64 + LM", ctc_graph_gpu.graph_search, graph),
    ):

        def call(function: Any = function, arguments: Any = arguments) -> float:
            function(AutomatonTensors(*lm.tensors), *arguments)
            return 1.0

        facts = {"search": search, "frames": FRAMES}
        yield Workload(name, PARAKEET, call, facts, longer=FRAMES / EMULATED_FRAMES, frames=EMULATED_FRAMES)


def of_transducers(lm: NGramLM, text: Any) -> Iterator[Workload]:
    sizes = transducer_random.REAL._replace(width=16, layers=1, heads=2)
    model = transducer_random.random_model("TDT", 1, sizes)
    frames = torch.randn(EMULATED_ROWS, FRAMES, sizes.decoder_width)
    lengths = torch.full((EMULATED_ROWS,), FRAMES)
    batch = [([*range(EMULATED_ROWS)], frames, lengths)]
    os.environ["HF_NGPULM_ENGINE"] = "cpu"
    transducer_random.set_blank_rate(model, transducer_random.plain_tokenizer(PARAKEET), batch, SECONDS * EMULATED_ROWS)
    os.environ["HF_NGPULM_ENGINE"] = "gpu"
    adapter = TransformersTransducer(model)
    models = no_models(EMULATED_ROWS, torch.device("cpu"))
    none = models.tensors, models.states, models.weights, 0
    states = lm.initial_states(EMULATED_ROWS)[:, None].contiguous()
    with_lm = lm.tensors, states, torch.full((EMULATED_ROWS, 1), 0.5), lm.vocab_size

    blocks_needed: dict[type, int] = {}

    def blocks(search: Any, states: Any, weights: Any, times: Callable[[], Any]) -> float:
        search.load(frames, lengths, states, weights, torch.zeros(EMULATED_ROWS))
        forget()
        for _ in range(EMULATED_BLOCKS):
            search.block()
        needed = math.ceil(FRAMES / float(times().float().mean()) * EMULATED_BLOCKS)
        # Greedily, with an LM and without, random frames say as many tokens.
        return blocks_needed.setdefault(type(search), needed) / EMULATED_BLOCKS

    def greedy(tensors: Any, states: Any, weights: Any, vocab_size: int) -> float:
        rules = Rules(adapter.blank_id, adapter.vocab_size, torch.tensor(adapter.durations), vocab_size, 10, has_ilm=False)
        search = looping_of(
            adapter, frames, EMULATED_ROWS, FRAMES, tensors, states.shape[1], rules, None, "gpu", WINDOW
        )  # fmt: skip
        return blocks(search, states, weights, lambda: search.rows.times)

    def alsd(tensors: Any, states: Any, weights: Any, vocab_size: int) -> float:
        settings = BeamSettings(6, "alsd")
        kind = transducer_beam.search_kind("gpu", frames.device, settings)
        search = kind(
            adapter, frames, EMULATED_ROWS, FRAMES, tensors, states.shape[1], vocab_size, settings, None, "gpu"
        )  # fmt: skip
        return blocks(search, states, weights, lambda: search.beam.times[:, 0])

    steps = 8 * EMULATED_BLOCKS
    for name, decoder, search, arguments in (
        ("TDT label looping", "greedy", greedy, none), ("TDT label looping + LM", "greedy + LM", greedy, with_lm),
        ("TDT ALSD++ 6 + LM", "ALSD 6 + LM", alsd, with_lm),
    ):  # fmt: skip
        facts = {"model": "TDT", "decoder": decoder, "frames": FRAMES}
        yield Workload(name, PARAKEET, partial(search, *arguments), facts, frames=steps)


if __name__ == "__main__":
    main()
