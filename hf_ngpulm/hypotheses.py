"""What a decoder returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One transcript of one utterance.

    Args:
        text: the transcript.
        token_ids: its tokens.
        score: what the search maximised: `acoustic_score + lm_weight * lm_score` (natural logs).
        acoustic_score: the acoustic model's log-probability of the alignment that was found, over all frames.
        lm_score: the language model's log-probability of the tokens, without `</s>`; 0 without a model.
        token_frames: the frame at which each token begins.
    """

    text: str
    token_ids: list[int]
    score: float
    acoustic_score: float
    lm_score: float
    token_frames: list[int]
