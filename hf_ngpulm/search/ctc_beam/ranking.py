"""Rank the prefixes of beams at the end of utterances."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...fusion.rows import RowModels
from . import BeamState
from .reference import in_order, join_texts


class Ranked(NamedTuple):
    """The best `N` prefixes of each row, the best one first. If a row has fewer prefixes, its last scores are -inf."""

    places: np.ndarray  # integers [B, N], places in the beam
    # float64 [B, N, 4]. The columns are the total score (with the score of the end), the acoustic score, the unweighted score
    # of the LMs (without `</s>`) and the unweighted score of the phrases.
    scores: np.ndarray


def rank(models: RowModels, state: BeamState, count: int, score_eos: bool, engine: str) -> Ranked:
    """Rank the prefixes of a batch by their total scores, which include the score of the end.

    Args:
        models: models of the rows.
        state: state of the search.
        count: N, at most K.
        score_eos: whether LMs score `</s>`. Unfinished phrases lose their bonus in either case.
        engine: the engine that queries the automata.
    """
    acoustic, scores = prefix_scores(state)
    scores, of_lms, of_phrases = models.at_end(scores, state.lm_scores, state.lm_states, score_eos, engine)
    order = in_order(state.last_tokens, state.parent_hashes)
    scores, places = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
    scores, places = scores[:, :count], order.gather(1, places[:, :count])
    columns = [scores, *(values.gather(1, places) for values in (acoustic, of_lms, of_phrases))]
    return Ranked(places.cpu().numpy(), torch.stack(columns, 2).cpu().numpy())


def with_joined_texts(state: BeamState) -> BeamState:
    """Return the state with only the best prefix of each text. This prefix gets the total probability of the text's prefixes.

    This is correct only at the end of an utterance.
    """
    totals = torch.logaddexp(state.blank_scores, state.token_scores)
    nothing = torch.full_like(totals, -torch.inf)
    totals, _ = join_texts(state.texts, state.last_tokens, state.parent_hashes, state.fused, totals, nothing)
    return state._replace(blank_scores=totals, token_scores=nothing)


def prefix_scores(state: BeamState) -> tuple[Tensor, Tensor]:
    """Return two scores of each prefix, float64 `[B, K]`: the acoustic score, and the score that includes LMs and bonuses."""
    acoustic = torch.logaddexp(state.blank_scores, state.token_scores).double() + state.offsets[:, None]
    return acoustic, acoustic + state.fused
