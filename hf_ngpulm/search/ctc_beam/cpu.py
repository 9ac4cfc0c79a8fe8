"""CTC prefix beam search with language models on the CPU, by the native core (`csrc/ctc_beam.cpp`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import in_threads
from ...fusion.fusion import RowModels
from ...lexicon.lazy_search import LazySearch
from ..frames import Frames
from . import BLANK, BeamFrames, BeamState


class Beams(Struct):
    """See `BeamState`."""

    name = "NgpulmBeams"
    members = """
        double* offsets;
        float* blank_scores;
        float* token_scores;
        int32_t* last_tokens;
        int64_t* hashes;
        int64_t* parent_hashes;
        int32_t* sizes;
        float* fused;
        float* lm_scores;
        int32_t* lm_states;
        int64_t* texts;
    """


class BeamRules(Struct):
    """See `hf_ngpulm.search.ctc_beam.ctc_beam`; no `text_hashes`: prefixes aren't joined by text."""

    name = "NgpulmBeamRules"
    members = """
        const float* weights;
        const float* bonuses;
        const float* unscored;
        const int64_t* text_hashes;
        int64_t num_automata;
        int64_t num_beams;
        double threshold;
        double skip;
    """


class _Stops(Struct):
    """See `Stops`; and by state of the automata whether it is unfinished."""

    name = "NgpulmBeamStops"
    members = """
        const uint8_t* unfinished;
        int64_t* frames;
        double* totals;
        int32_t* states;
        int64_t* counts;
    """


class BeamModels(Struct):
    """See `RowModels`."""

    name = "NgpulmBeamModels"
    members = """
        const int32_t* states;
        const float* weights;
        const uint8_t* present;
        int64_t num_automata;
        int64_t num_lms;
        uint8_t score_eos;
    """

    @classmethod
    def of(cls, models: RowModels, score_eos: bool) -> BeamModels:
        states, weights, present = (part.contiguous() for part in (models.states, models.weights, models.present))
        num_automata = states.shape[1]
        return cls(
            states=states, weights=weights, present=present, num_automata=num_automata, num_lms=models.num_lms,
            score_eos=score_eos,
        )  # fmt: skip


class Ranked(Struct):
    """See `hf_ngpulm.search.ctc_beam.ranking.Ranked`."""

    name = "NgpulmRanked"
    members = """
        int32_t* places;
        int32_t* sizes;
        double* scores;
        int64_t count;
    """


_search = Function(
    "int64_t ngpulm_ctc_beam(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmFrames* frames,"
    " const NgpulmBeamRules* rules, const NgpulmBeams* beams, int32_t* links, int32_t* labels, int32_t* bad_frames,"
    " int64_t width, const NgpulmBeamStops* stops)",
    Automaton, Frames, BeamRules, Beams, _Stops,
)  # fmt: skip
_rank = Function(
    "int64_t ngpulm_ctc_beam_rank(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmBeamModels*"
    " models, const NgpulmBeams* beams, int64_t num_beams, const NgpulmRanked* ranked)",
    Automaton, BeamModels, Beams, Ranked,
)  # fmt: skip


class Stops(NamedTuple):
    """Where rows have stopped that have come to states which a language model hasn't composed yet.

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
    """See `hf_ngpulm.search.ctc_beam.ctc_beam`. With a `lazy` search the automaton is its tensors, composed meanwhile."""
    batch_size, frames, classes = logits.shape
    num_beams, num_automata = state.lm_states.shape[1:]
    state = BeamState(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in state))
    labels = torch.full((batch_size, frames, num_beams), BLANK, dtype=torch.int32)
    links = torch.arange(num_beams, dtype=torch.int32).expand(labels.shape).contiguous()
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32)
    if not (frames and classes):
        return state, BeamFrames(links, labels, bad_frames)
    of_row = weights, bonuses, unscored
    arguments = (
        Frames.of(logits, lengths, blank), rules_of(*of_row, num_beams, threshold, skip, text_hashes),
        Beams(**state._asdict()), links, labels, bad_frames, frames,
    )  # fmt: skip

    def search(automaton: AutomatonTensors, stops: _Stops | None) -> None:
        given = (Automaton.of(automaton, vocab_size), *arguments, stops)
        work = elements_per_row(frames, classes, num_beams)
        check(in_threads(lambda first, last: _search(first, last, *given), batch_size, work))

    if lazy is None:
        search(automaton, None)
    else:
        stops = Stops.of(batch_size, num_beams, num_automata)
        lazy.search(lambda grown, unfinished: search(grown, _Stops(unfinished=unfinished, **stops._asdict())), stops)
        is_there = torch.maximum(state.blank_scores, state.token_scores) > -torch.inf
        lazy.enter(state.lm_states[is_there].flatten().numpy())
    return state, BeamFrames(links, labels, bad_frames)


def rules_of(
    weights: Tensor,
    bonuses: Tensor,
    unscored: Tensor,
    num_beams: int,
    threshold: float,
    skip: float,
    text_hashes: Tensor | None,
) -> BeamRules:
    """Return the rules of a search."""
    return BeamRules(
        weights=weights.contiguous(), bonuses=bonuses.contiguous(), unscored=unscored.contiguous(), text_hashes=text_hashes,
        num_automata=weights.shape[1], num_beams=num_beams, threshold=threshold, skip=skip,
    )  # fmt: skip


def elements_per_row(frames: int, classes: int, num_beams: int) -> int:
    """Return how much work a row is, see `in_threads`."""
    return frames * (classes + 64 * num_beams)


def check(bad_rows: list[int]) -> None:
    """Raise for the first row that a search has refused."""
    for row in bad_rows:
        if row >= 0:
            raise IndexError(f"prefixes of row {row} name states or tokens that there aren't")


def rank(models: RowModels, state: BeamState, count: int, score_eos: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return places, sizes and scores, see `hf_ngpulm.search.ctc_beam.ranking.Ranked`."""
    batch_size, num_beams = state.last_tokens.shape
    places, sizes = np.empty((batch_size, count), dtype=np.int32), np.empty((batch_size, count), dtype=np.int32)
    scores = np.empty((batch_size, count, 4))
    arguments: tuple[Any, ...] = (
        Automaton.of(models.tensors, models.vocab_size), BeamModels.of(models, score_eos),
        Beams(**{name: tensor.contiguous() for name, tensor in state._asdict().items()}), num_beams,
        Ranked(places=places, sizes=sizes, scores=scores, count=count),
    )  # fmt: skip
    check([_rank(0, batch_size, *arguments)])
    return places, sizes, scores
