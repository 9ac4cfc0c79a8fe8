"""Beam search for transducers, with language models fused in: ALSD++ (RNN-T and TDT) and AES++ (RNN-T).

Both searches (Grigoryan et al., "Pushing the Limits of Beam Search Decoding for Transducer-based ASR models", arXiv 2506.00185)
keep `num_beams` hypotheses, token sequences at a frame. In ALSD (after Saon et al., ICASSP 2020) every hypothesis takes one
step at a time, blank or token, so that all have taken equally many. In AES (after Kim et al., "Accelerating RNN Transducer
Inference via Adaptive Expansion Search", IEEE SPL 2020) all are at the same frame, where each takes up to `aes_steps` tokens.
Ways that lead to the same tokens at the same frame are one hypothesis.

The order of what scores the same is part of the definition, too: a hypothesis's classes by their ids, the durations of a class
as the model has them, and hypotheses by the places that their best ways come from (those of a beam are in order, the best
first), then by the order of what extends them there.

For a step of a hypothesis with the LM's weights w and their sum W the scores are, with blank-aware scoring,

    log p(token) + W * log(1 - p(blank)) + sum of w * LM(token)    and    (1 + W) * log p(blank)

as if the LM gave the blank the model's own probability, and without it log p(token) + sum of w * LM(token) and log p(blank). An
internal LM that is subtracted is one more LM with a negative weight; automata that boost phrases have no part in W, since what
they add are no log-probabilities. In a TDT the log-probability of the duration comes on top.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...engines.choice import engine_name
from ...engines.native import Struct
from ..networks.graphs import Kept
from ..networks.model import TransducerModel

# What a step's label is when a hypothesis stands still (a row, or a hypothesis, that has ended).
STILL = -1
FIRST_HASH = 0x2545F491


class BeamSettings(NamedTuple):
    """Say how a search goes.

    Args:
        num_beams: hypotheses that are kept.
        strategy: "alsd" or "aes".
        blank_aware: whether the LM's weight is taken into account in the score of the blank, see above.
        late: whether LM scores are added before the best classes of a hypothesis are chosen, or after. In a TDT with early
            pruning these are the `num_beams` classes that the model alone finds likeliest, whatever their durations; of their
            pairs of class and duration the `num_beams` best with the LM are taken.
        log_sum: whether ways to the same hypothesis are summed, or the best one counts.
        max_symbols: tokens that may be emitted at one frame (ALSD).
        aes_steps: the same for AES.
        aes_beta: classes that a hypothesis may be extended by in one step of AES, more than `num_beams`.
        aes_gamma: how much less (natural log) than its best class a class may score to be among them.
        has_ilm: whether an internal LM is subtracted in any row.
        num_lms: so many of the automata, the first ones, are language models; the others boost phrases. None: all of them.
    """

    num_beams: int = 4
    strategy: str = "alsd"
    blank_aware: bool = True
    late: bool = True
    log_sum: bool = True
    max_symbols: int = 10
    aes_steps: int = 2
    aes_beta: int = 1
    aes_gamma: float = 2.3
    has_ilm: bool = False
    num_lms: int | None = None


class BeamHypotheses(NamedTuple):
    """Hold what a search found for a batch: `K` hypotheses a row, in no order.

    Args:
        scores: float64 `[B, K]`, -inf for none.
        acoustic_scores: float64 `[B, K]`, log-probability of the model alone.
        lm_scores: float32 `[B, K, M]`, each automaton's unweighted score of the tokens.
        lm_states: int32 `[B, K, M]`.
        sizes: int64 `[B, K]`, number of tokens.
        counts: int64 `[B, K]`, number of steps.
        labels, frames, durations: int64 `[B, K, S]`, of each step: the class, blank or token; the frame; and the frames that
            the search moved on after it. Entries from a hypothesis's number of steps on mean nothing.
        confidences: float32 `[B, K, S]`, the model's confidence at the steps with tokens, if asked for.
        bad_frames: int64 `[B]`, the first frame of a row at which logits can't be normalised, else -1.
        steps: int32 `[T, B, K]`, of all steps of the search: the place in the beam that each hypothesis comes from, and its
            label.
    """

    scores: Tensor
    acoustic_scores: Tensor
    lm_scores: Tensor
    lm_states: Tensor
    sizes: Tensor
    counts: Tensor
    labels: Tensor
    frames: Tensor
    durations: Tensor
    confidences: Tensor
    bad_frames: Tensor
    steps: tuple[np.ndarray, np.ndarray]


def beam_search(
    model: TransducerModel,
    frames: Tensor,
    lengths: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    vocab_size: int,
    settings: BeamSettings,
    engine: str = "auto",
    kept: Kept | None = None,
    confidence: str | None = None,
    composing: Struct | None = None,
    ilm_weights: Tensor | None = None,
) -> BeamHypotheses:
    """Decode a batch.

    Args:
        frames: `[B, T, D]`, projected.
        lengths: int64 `[B]`.
        automaton: tensors of one automaton, or of several packed into one.
        states: int32 `[B, M]`, the states in which each row's automata begin.
        weights: float32 `[B, M]`.
        vocab_size: tokens that the automata score, `0 .. vocab_size - 1`.
        engine: "auto" (by device), "reference", "cpu" or "gpu".
        kept: where buffers and CUDA graphs are kept for the next batch: pass the same dictionary again.
        confidence: measure, see `hf_ngpulm.search.confidence`.
        composing: for the native core, see `hf_ngpulm.automaton.cpu.Automaton.of`.
        ilm_weights: float32 `[B]`, what the internal LM's scores are subtracted with; None for no internal LM.

    Returns:
        The hypotheses, on the CPU.
    """
    settings = settings._replace(has_ilm=ilm_weights is not None)
    internal = weights.new_zeros(len(weights)) if ilm_weights is None else ilm_weights
    arguments = (model, frames, lengths, automaton, states, weights, internal, vocab_size, settings, confidence)
    if engine_name(engine, frames.device) == "cpu":
        return importlib.import_module(f"{__package__}.cpu").beam_search(*arguments, composing)
    return importlib.import_module(f"{__package__}.tensors").beam_search(*arguments, engine, kept)
