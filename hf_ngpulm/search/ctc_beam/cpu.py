"""CTC prefix beam search with language models on the CPU, by the native core (`csrc/ctc_beam.cpp`).

Streams, and language models that grow, need search and ranking one by one; else a `WholeSearch` does all at once: for one short
utterance the search itself takes less time than the torch operators that prepare the state of one that may go on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import on_rows
from ...fusion.fusion import RowModels
from ...lexicon.lazy_search import LazySearch
from ..frames import Frames
from . import BeamFrames, BeamState


class Beams(Struct):
    """See `BeamState`."""


class BeamRules(Struct):
    """See `hf_ngpulm.search.ctc_beam.ctc_beam`; no `text_hashes`: prefixes aren't joined by text."""

    @classmethod
    def of(
        cls,
        weights: Tensor,
        bonuses: Tensor,
        unscored: Tensor,
        num_beams: int,
        threshold: float,
        skip: float,
        text_hashes: Tensor | None,
    ) -> BeamRules:
        return cls(
            weights=weights.contiguous(), bonuses=bonuses.contiguous(), unscored=unscored.contiguous(), text_hashes=text_hashes,
            num_automata=weights.shape[1], num_beams=num_beams, threshold=threshold, skip=skip,
        )  # fmt: skip


class _BeamStops(Struct):
    """See `Stops`; and by state of the automata whether it is unfinished."""


class BeamModels(Struct):
    """See `RowModels`."""

    @classmethod
    def of(cls, models: RowModels, score_eos: bool) -> BeamModels:
        states, weights, present = (part.contiguous() for part in (models.states, models.weights, models.present))
        num_automata = states.shape[1]
        return cls(
            states=states, weights=weights, present=present, num_automata=num_automata, num_lms=models.num_lms,
            score_eos=score_eos,
        )  # fmt: skip


class _Ranked(Struct):
    """See `hf_ngpulm.search.ctc_beam.ranking.Ranked`."""


class _Traced(Struct):
    """See `TracedTokens`; `width` is L."""


_search = Function("ngpulm_ctc_beam")
_search_whole = Function("ngpulm_ctc_beam_whole")
_rank = Function("ngpulm_ctc_beam_rank")
REFUSAL = "prefixes of row {} name states or tokens that there aren't".format


class Stops(NamedTuple):
    """Hold where rows have stopped that have come to states which a language model hasn't composed yet.

    Args:
        frames: int64 `[B]`, the next one of each row.
        totals: float64 `[B, K]`, of each prefix, in double precision.
        states: int32 `[B, K * M]`, those that are unfinished.
        counts: int64 `[B]`, how many these are.
    """

    frames: np.ndarray
    totals: np.ndarray
    states: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, batch_size: int, num_beams: int, num_automata: int) -> Stops:
        """Return where nothing has been searched yet."""
        frames, counts = np.zeros(batch_size, dtype=np.int64), np.zeros(batch_size, dtype=np.int64)
        states = np.empty((batch_size, num_beams * num_automata), dtype=np.int32)
        return cls(frames, np.empty((batch_size, num_beams)), states, counts)


def ctc_beam(
    automaton: AutomatonTensors,
    state: BeamState,
    logits: Tensor,
    lengths: Tensor,
    weights: Tensor,
    bonuses: Tensor,
    unscored: Tensor,
    blank: int,
    vocab_size: int,
    threshold: float,
    skip: float,
    text_hashes: Tensor | None = None,
    lazy: LazySearch | None = None,
) -> tuple[BeamState, BeamFrames]:
    """See `hf_ngpulm.search.ctc_beam.ctc_beam`. With a `lazy` search the automaton is its own."""
    batch_size, frames, classes = logits.shape
    num_beams, num_automata = state.lm_states.shape[1:]
    state = BeamState(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in state))
    happened = BeamFrames.still(batch_size, frames, num_beams)
    if not (frames and classes):
        return state, happened
    arguments = (
        Frames.of(logits, lengths, blank), BeamRules.of(weights, bonuses, unscored, num_beams, threshold, skip, text_hashes),
        Beams(**state._asdict()), *happened, frames,
    )  # fmt: skip

    def search(automaton: Automaton, stops: _BeamStops | None) -> None:
        per_row = _elements_per_row(frames, classes, num_beams)
        on_rows(_search, (automaton, *arguments, stops), batch_size, per_row, REFUSAL)

    if lazy is None:
        search(Automaton.lent(automaton, vocab_size), None)
    else:
        stops, composed = Stops.of(batch_size, num_beams, num_automata), lazy  # `lazy` may be None for type checkers

        def go_on(tensors: AutomatonTensors, unfinished: np.ndarray) -> None:
            native_stops = _BeamStops(unfinished=unfinished, **stops._asdict())
            search(Automaton.of(tensors, vocab_size, composed.composing), native_stops)

        lazy.search(go_on, stops.states, stops.counts)
        is_there = torch.maximum(state.blank_scores, state.token_scores) > -torch.inf
        lazy.enter(state.lm_states[is_there].flatten().numpy())
    return state, happened


def _elements_per_row(frames: int, classes: int, num_beams: int) -> int:
    """Return how much work a row is, see `in_threads`."""
    return frames * (classes + 64 * num_beams)


def rank(models: RowModels, state: BeamState, count: int, score_eos: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return places, sizes and scores, see `hf_ngpulm.search.ctc_beam.ranking.Ranked`."""
    batch_size, num_beams = state.last_tokens.shape
    places, sizes = np.empty((batch_size, count), dtype=np.int32), np.empty((batch_size, count), dtype=np.int32)
    scores = np.empty((batch_size, count, 4))
    arguments: tuple[Any, ...] = (
        Automaton.of(models.tensors, models.vocab_size), BeamModels.of(models, score_eos),
        Beams(**{name: tensor.contiguous() for name, tensor in state._asdict().items()}), num_beams,
        _Ranked(places=places, sizes=sizes, scores=scores, count=count),
    )  # fmt: skip
    on_rows(_rank, arguments, batch_size, 0, REFUSAL)
    return places, sizes, scores


class TracedTokens(NamedTuple):
    """Tokens of `N` hypotheses a row; entries from a hypothesis's number of tokens on mean nothing.

    Args:
        counts: int32 `[B, N]`, number of tokens.
        tokens: int32 `[B, N, L]`.
        starts, ends: int32 `[B, N, L]`, first frame of each token and the frame after its last one.
    """

    counts: np.ndarray
    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class Found(NamedTuple):
    """Hold what was found of `B` rows, at most `N` hypotheses each.

    Args:
        traced: their tokens.
        scores: float64 `[B, N, 4]`, see `hf_ngpulm.search.ctc_beam.ranking.Ranked`.
        bad_frames: int32 `[B]`, see `BeamFrames`.
    """

    traced: TracedTokens
    scores: np.ndarray
    bad_frames: np.ndarray


class WholeSearch:
    """Beam search over whole utterances of batches with the same models, none of which grows.

    Args:
        models: of the rows.
        bonuses, unscored, blank: as for `ctc_beam`.
        num_beams, count: prefixes that the search keeps, and hypotheses that are returned.
        threshold, skip: as for `ctc_beam`.
        score_eos: whether `</s>` counts at the end.
        text_hashes: int64 `[2, C]`, if prefixes are joined by text; C are the classes of all logits.
    """

    def __init__(
        self,
        models: RowModels,
        bonuses: Tensor,
        unscored: Tensor,
        blank: int,
        num_beams: int,
        count: int,
        threshold: float,
        skip: float,
        score_eos: bool,
        text_hashes: Tensor | None = None,
    ) -> None:
        self.num_beams, self.count, self.blank = num_beams, count, blank
        self._automaton, self._models = Automaton.of(models.tensors, models.vocab_size), BeamModels.of(models, score_eos)
        self._rules = BeamRules.of(models.weights, bonuses, unscored, num_beams, threshold, skip, text_hashes)

    def __call__(self, logits: Tensor, lengths: Tensor) -> Found:
        """Search.

        Args:
            logits: `[B, T, C]`.
            lengths: int32 `[B]`.
        """
        batch_size, frames, classes = logits.shape
        shape = batch_size, self.count
        places, counts = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.int32)
        scores, bad_frames = np.empty((*shape, 4)), np.empty(batch_size, dtype=np.int32)
        tokens, starts, ends = (np.empty((*shape, frames), dtype=np.int32) for _ in range(3))
        arguments = (
            self._automaton, Frames.of(logits, lengths, self.blank), self._rules, self._models,
            _Ranked(places=places, sizes=counts, scores=scores, count=self.count),
            _Traced(tokens=tokens, starts=starts, ends=ends, width=frames), bad_frames,
        )  # fmt: skip
        on_rows(_search_whole, arguments, batch_size, _elements_per_row(frames, classes, self.num_beams), REFUSAL)
        return Found(TracedTokens(counts, tokens, starts, ends), scores, bad_frames)
