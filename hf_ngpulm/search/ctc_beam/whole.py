"""Whole utterances on the CPU: search, ranking and tracing back in one compiled call.

For one short utterance the search itself takes less time than the torch operators that prepare the state of a search that may
go on. The loops are those of the search in blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...automaton.compiled import arrays_of, compiled
from ...automaton.tensors import AutomatonTensors
from ...common.batches import packed_frames
from ...engines.threads import in_threads
from ...fusion.fusion import RowModels
from . import BLANK, FIRST_HASH
from .cpu import Stops, elements_per_row, highest_of_tokens, search_rows, states_in_beam
from .joining import join_at_end
from .ranking_cpu import rank_rows
from .tracing import TracedTokens, trace_rows

if TYPE_CHECKING:
    from ...lexicon.lazy_search import Growth


class Found(NamedTuple):
    """What was found of `B` rows, at most `N` hypotheses each.

    Args:
        traced: their tokens.
        scores: float64 `[B, N, 4]`, see `hf_ngpulm.search.ctc_beam.ranking.Ranked`.
        bad_frames: int32 `[B]`, see `BeamFrames`.
    """

    traced: TracedTokens
    scores: np.ndarray
    bad_frames: np.ndarray


class WholeSearch:
    """Beam search over whole utterances of batches with the same models.

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
        self._growth, self._tensors = models.growth, models.tensors
        self._of_models: tuple[Any, ...] = (
            *(tensor.contiguous().numpy() for tensor in (models.states, models.weights, models.present)),
            models.num_lms, models.vocab_size,
        )  # fmt: skip
        hashes = np.empty((2, 0), dtype=np.int64) if text_hashes is None else text_hashes.numpy()
        self._settings = (bonuses.numpy(), unscored.numpy(), blank, threshold, skip, score_eos, hashes)

    def __call__(self, logits: Tensor, lengths: Tensor) -> Found:
        """Search.

        Args:
            logits: `[B, T, C]`.
            lengths: int32 `[B]`.
        """
        batch_size, frames, classes = logits.shape
        starts, packed = packed_frames(logits, lengths)
        normalisers = torch.logsumexp(packed, dim=-1).numpy()
        inputs = (starts.numpy(), packed.numpy(), normalisers, highest_of_tokens(packed, self.blank).numpy(), lengths.numpy())
        traced = TracedTokens(
            np.zeros((batch_size, self.count), dtype=np.int32),
            *(np.empty((batch_size, self.count, frames), dtype=np.int32) for _ in range(3)),
        )
        scores = np.full((batch_size, self.count, 4), -np.inf)
        bad_frames = np.full(batch_size, -1, dtype=np.int32)
        found = Found(traced, scores, bad_frames)
        work = elements_per_row(frames, classes, self.num_beams)
        if self._growth is not None:
            self._grow(self._growth, inputs, found, work)
            return found
        arguments: tuple[Any, ...] = (
            *arrays_of(self._tensors), *self._of_models, *inputs, *self._settings, self.num_beams, *traced, scores, bad_frames
        )  # fmt: skip
        in_threads(lambda first, last: _decode_rows(first, last, *arguments), batch_size, work)
        return found

    def _grow(self, growth: Growth, inputs: tuple[np.ndarray, ...], found: Found, work: int) -> None:
        """The same with language models that grow: where they have to, rows stop, and go on from there."""
        states, weights, present, num_lms, vocab_size = self._of_models
        bonuses, unscored, blank, threshold, skip, score_eos, text_hashes = self._settings
        longest = int(inputs[-1].max(initial=0))
        beams: tuple[np.ndarray, ...] = _begin_rows(states, self.num_beams, longest)
        stops = Stops.of(len(states), self.num_beams, states.shape[1])
        arguments: tuple[Any, ...] = (
            *inputs, weights, bonuses, unscored, blank, vocab_size, threshold, skip, text_hashes, *beams,
            found.bad_frames, *stops,
        )  # fmt: skip

        def search(automaton: AutomatonTensors, unfinished: np.ndarray) -> None:
            given = (*arrays_of(automaton), unfinished, *arguments)
            in_threads(lambda first, last: search_rows(first, last, *given), len(states), work)

        with growth.lock:
            growth.search(search, stops)
            growth.enter(states_in_beam(beams[1], beams[2], beams[9]))
            of_models = (*arrays_of(growth.tensors), vocab_size, weights, present, num_lms)
            arguments = (*of_models, score_eos, text_hashes, *beams, *found.traced, found.scores)
            _end_rows(*arguments)


@compiled
def _decode_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, first_states, weights,
    present, num_lms, vocab_size, starts, logits, normalisers, highest, lengths, bonuses, unscored, blank, threshold, skip,
    score_eos, text_hashes, num_beams, counts, tokens, token_starts, token_ends, scores, bad_frames,
):  # fmt: skip
    rows, batch, longest = slice(first, last), last - first, 0
    for row in range(first, last):
        longest = max(longest, lengths[row])
    beams = _begin_rows(first_states[rows], num_beams, longest)
    of_stops = np.zeros((2, batch), dtype=np.int64)
    search_rows(  # type: ignore[call-arg]
        np.int64(0), batch,  # as a literal it would be a type of its own, for which the search would be compiled anew
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, np.zeros(0, dtype=np.uint8),
        starts[rows], logits, normalisers, highest, lengths[rows], weights[rows], bonuses[rows], unscored[rows],
        blank, vocab_size, threshold, skip, text_hashes, *beams, bad_frames[rows],
        of_stops[0], np.empty((batch, num_beams)), np.empty((batch, 0), dtype=np.int32), of_stops[1],
    )  # fmt: skip
    _end_rows(  # type: ignore[call-arg]
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, vocab_size, weights[rows],
        present[rows], num_lms, score_eos, text_hashes, *beams,
        counts[rows], tokens[rows], token_starts[rows], token_ends[rows], scores[rows],
    )  # fmt: skip


@compiled
def _begin_rows(first_states, num_beams, longest):
    """The beams before the first frame, and room for what happens at each, as `search_rows` takes them."""
    batch, num_automata = first_states.shape
    offsets, parent_hashes = np.zeros(batch), np.zeros((batch, num_beams), dtype=np.int64)
    blank_scores = np.full((batch, num_beams), np.float32(-np.inf))
    token_scores = np.full((batch, num_beams), np.float32(-np.inf))
    last_tokens = np.full((batch, num_beams), np.int32(-1))
    hashes = np.full((batch, num_beams), np.int64(FIRST_HASH))
    sizes, fused = np.zeros((batch, num_beams), dtype=np.int32), np.zeros((batch, num_beams), dtype=np.float32)
    lm_scores = np.zeros((batch, num_beams, num_automata), dtype=np.float32)
    lm_states = np.empty((batch, num_beams, num_automata), dtype=np.int32)
    texts = np.zeros((batch, num_beams), dtype=np.int64)
    for row in range(batch):
        blank_scores[row, 0] = 0.0
        lm_states[row] = first_states[row]
    labels = np.full((batch, longest, num_beams), np.int32(BLANK))
    links = np.empty((batch, longest, num_beams), dtype=np.int32)
    for place in range(num_beams):
        links[:, :, place] = place
    return (
        offsets, blank_scores, token_scores, last_tokens, hashes, parent_hashes, sizes, fused, lm_scores, lm_states, texts,
        links, labels,
    )  # fmt: skip


@compiled
def _end_rows(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, vocab_size, weights, present, num_lms,
    score_eos, text_hashes, offsets, blank_scores, token_scores, last_tokens, hashes, parent_hashes, sizes, fused, lm_scores,
    lm_states, texts, links, labels, counts, tokens, token_starts, token_ends, scores,
):  # fmt: skip
    """Rank the prefixes at the end of utterances, and trace them back."""
    if text_hashes.size:
        join_at_end(texts, last_tokens, fused, blank_scores, token_scores)
    places = np.zeros((offsets.size, counts.shape[1]), dtype=np.int32)
    rank_rows(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, vocab_size, weights,
        present, num_lms, offsets, blank_scores, token_scores, sizes, fused, lm_scores, lm_states, score_eos,
        places, counts, scores,
    )  # fmt: skip
    trace_rows(links, labels, places, counts, tokens, token_starts, token_ends)
