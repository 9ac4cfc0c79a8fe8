"""Greedy transducer search with language models for batches, by looping over labels (Bataev et al., "Label-Looping", SLT 2024).

The prediction network runs once for each label, not for each frame. And since its output doesn't change until the next
label, the joint network runs on a block of coming frames at once: the search follows the blanks (and their durations)
inside the block, so that the loop turns about once for each label. Rows that have ended are left out of the batch.

Where several classes or durations score the same the first one is chosen.

On the CPU, a transducer of the usual kind (see `networks`) is run by the native core as a whole.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...engines.choice import engine_name
from ...engines.native import Struct
from ..networks.graphs import Kept, grown, recalled
from ..networks.model import TransducerModel
from .cpu import tables_by_turns, tables_of_steps
from .rows import GreedySteps, Rows, Rules
from .tensors import Looping

# Frames that are looked at in one go. The native core, to which a turn costs next to nothing, look at fewer.
WINDOW = 4


def greedy(
    model: TransducerModel,
    frames: Tensor,
    lengths: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    vocab_size: int,
    max_symbols: int | None,
    ilm_weights: Tensor | None = None,
    confidence: str | None = None,
    engine: str = "auto",
    window: int | None = None,
    kept: Kept | None = None,
    composing: Struct | None = None,
) -> GreedySteps:
    """Decode a batch.

    Args:
        frames: `[B, T, D]`, projected.
        lengths: int64 `[B]`.
        automaton: tensors of one automaton, or of several packed into one.
        states: int32 `[B, M]`, the states in which each row's automata begin.
        weights: float32 `[B, M]`.
        vocab_size: tokens that the automata score, `0 .. vocab_size - 1`.
        max_symbols: tokens that may be emitted at one frame; None for any number.
        ilm_weights: float32 `[B]`, what the internal LM's scores are subtracted with; None for no internal LM.
        confidence: measure, see `hf_ngpulm.search.confidence`.
        window: frames that are looked at in one go, by default what suits the engine.
        kept: where buffers and CUDA graphs are kept for the next batch: pass the same dictionary again.
        composing: for the native core, see `hf_ngpulm.automaton.cpu.Automaton.of`.
    """
    durations = torch.tensor(model.durations or (), dtype=torch.int64, device=frames.device)
    most_symbols = torch.iinfo(torch.int64).max if max_symbols is None else max_symbols
    rules = Rules(model.blank_id, model.vocab_size, durations, vocab_size, most_symbols, ilm_weights is not None)
    internal = weights.new_zeros(len(weights)) if ilm_weights is None else ilm_weights
    if engine_name(engine, frames.device) != "cpu":
        size, longest = grown(frames.shape[0], 1), grown(frames.shape[1], 64)
        key = (
            "greedy", size, longest, states.shape[1], vocab_size, most_symbols, rules.has_ilm, confidence, engine, window,
            frames.shape[2], frames.dtype, frames.device, id(model),
        )  # fmt: skip
        weighed = (*(automaton if states.shape[1] else ()), *model.parameters())
        of = (model, frames, size, longest, automaton, states.shape[1], rules, confidence, engine, window or WINDOW)
        with recalled(kept, key, weighed, lambda: looping_of(*of)) as looping:
            looping.load(frames, lengths, states, weights, internal)
            looping.run()
            return looping.found()
    rows = Rows.begin(lengths, states, weights, internal)
    networks = model.networks()
    if networks is not None and networks.serve(frames, model.vocab_size, len(durations)):
        tables = tables_of_steps(networks, frames, automaton, rules, rows, confidence, window, composing=composing)
    else:
        tables = tables_by_turns(model, frames, automaton, rules, rows, confidence, window or WINDOW, composing)
    counts, tokens, moves, confidences = tables
    return GreedySteps(
        counts, tokens, moves, None if confidence is None else confidences, rows.acoustic_scores, rows.lm_scores,
        rows.lm_states, rows.ilm_scores, rows.bad_frames,
    )  # fmt: skip


def looping_of(
    model: TransducerModel,
    frames: Tensor,
    size: int,
    longest: int,
    automaton: AutomatonTensors,
    num_automata: int,
    rules: Rules,
    confidence: str | None,
    engine: str,
    window: int,
) -> Looping:
    """Return a search in buffers: with kernels on a GPU, else with torch's operations. Arguments as those of `Looping`."""
    module = "gpu" if engine_name(engine, frames.device) == "gpu" else "tensors"
    kind: type[Looping] = importlib.import_module(f"{__package__}.{module}").Looping
    return kind(model, frames, size, longest, automaton, num_automata, rules, confidence, engine, window)
