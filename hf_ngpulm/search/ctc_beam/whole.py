"""Whole utterances on the CPU: search, ranking and tracing back in one call of the native core.

For one short utterance the search itself takes less time than the torch operators that prepare the state of a search that may
go on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...automaton.cpu import Automaton
from ...engines.native import Function
from ...engines.threads import in_threads
from ...fusion.fusion import RowModels
from ..frames import Frames
from .cpu import BeamModels, BeamRules, Ranked, check, elements_per_row, rules_of
from .tracing import Traced, TracedTokens

_decode = Function(
    "int64_t ngpulm_ctc_beam_whole(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmFrames* frames,"
    " const NgpulmBeamRules* rules, const NgpulmBeamModels* models, const NgpulmRanked* ranked, const NgpulmTraced* traced,"
    " int32_t* bad_frames)",
    Automaton, Frames, BeamRules, BeamModels, Ranked, Traced,
)  # fmt: skip


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
    """Beam search over whole utterances of batches with the same models, none of which is composed lazily.

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
        self._rules = rules_of(models.weights, bonuses, unscored, num_beams, threshold, skip, text_hashes)

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
            Ranked(places=places, sizes=counts, scores=scores, count=self.count),
            Traced(tokens=tokens, starts=starts, ends=ends, width=frames), bad_frames,
        )  # fmt: skip
        work = elements_per_row(frames, classes, self.num_beams)
        check(in_threads(lambda first, last: _decode(first, last, *arguments), batch_size, work))
        return Found(TracedTokens(counts, tokens, starts, ends), scores, bad_frames)
