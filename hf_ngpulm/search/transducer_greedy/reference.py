"""Run greedy transducer search with language models for one utterance in plain Python. This defines the engines' results.

At each step the joint network scores the classes at a frame. If the blank is best, the search advances: by one frame (RNN-T),
or by the predicted duration, at least one frame (TDT). The LM doesn't change this decision. An LM scores no blanks, so it would
turn tokens into blanks, and words would be lost. If a token is best, the search emits the token with the best sum of acoustic
logit and weighted LM score. An RNN-T then stays at the frame; a TDT advances by the duration. After `max_symbols` tokens at a
frame the search advances by one frame.

The weighted log-probabilities of the transducer's internal LM can be subtracted. If there is no LM, or all LM weights are 0,
the search then emits the token with the highest logit minus internal LM score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton import reference
from ..confidence import frame_confidence
from ..networks.model import TransducerModel
from ..networks.reference import Path, PlainSearch, RowOfModels, check
from ..networks.search import SearchSettings


class Search(PlainSearch):
    """A greedy search in plain Python, row by row."""

    def search(self, paths: list[Path], frames: Tensor, of_row: RowOfModels, reach: int) -> list[Path]:
        return [greedy(self.model, frames, of_row, self.settings, path) for path in paths]


def greedy(model: TransducerModel, frames: Tensor, row: RowOfModels, settings: SearchSettings, path: Path) -> Path:
    """Search all frames `[T, D]`. Continue `path`, and return the continued path. Raises BrokenFrame if logits contain NaN or
    infinity.
    """
    listens = bool((row.weights != 0).any())
    candidates = torch.arange(min(row.vocab_size, model.vocab_size) if listens else model.vocab_size, device=frames.device)
    while path.time < len(frames):
        logits = model.join(frames[path.time], path.prediction[0]).float()
        check(model, logits, path.time)
        token_logits, duration_logits = logits[: model.vocab_size], logits[model.vocab_size :]
        token = int(token_logits.argmax())
        gain, duration = 0.0, int(token == model.blank_id)
        if model.durations is not None:
            best = int(duration_logits.argmax())
            gain, duration = float(duration_logits.log_softmax(0)[best]), model.durations[best]
        if token == model.blank_id:
            gain += float(token_logits.log_softmax(0)[token])
            duration = max(duration, 1)
            path = path._replace(symbols=0, score=path.score + gain, confidences=(*path.confidences, 0.0))
        else:
            token, ilm_score = _chosen(token, token_logits, candidates, listens, model, row, path)
            gain += float(token_logits.log_softmax(0)[token])
            if duration == 0 and path.symbols + 1 >= settings.max_symbols:
                duration = 1
            per_lm, lm_states = reference.step(
                row.read(path.lm_states), path.lm_states, torch.full_like(path.lm_states, token), row.vocab_size
            )
            prediction, state = model.predict(torch.tensor([token], device=frames.device), path.state)
            measure = settings.confidence
            heard = 0.0 if measure is None else float(frame_confidence(token_logits[None, None], measure))
            path = path._replace(
                tokens=(*path.tokens, token), read=path.read + 1, prediction=prediction, state=state, lm_states=lm_states,
                lm_scores=path.lm_scores + per_lm, symbols=0 if duration else path.symbols + 1,
                score=path.score + gain + float((row.weights * per_lm).sum()) - row.ilm_weight * ilm_score,
                ilm_score=path.ilm_score + ilm_score, confidences=(*path.confidences, heard),
            )  # fmt: skip
        path = path._replace(
            acoustic_score=path.acoustic_score + gain, steps=(*path.steps, (token, path.time, duration)),
            time=path.time + duration, fresh=path.fresh + 1,
        )  # fmt: skip
    return path


def _chosen(
    token: int, logits: Tensor, candidates: Tensor, listens: bool, model: TransducerModel, row: RowOfModels, path: Path
) -> tuple[int, float]:
    """Return the token that is best with the LMs, and its unweighted internal LM score (0 if no internal LM is subtracted).

    `token` is the acoustically best token, `candidates` are the classes to choose from. `listens`: whether any LM has a weight.
    """
    if token >= len(candidates):
        return token, 0.0
    fused = logits[candidates]
    if listens:
        per_lm = reference.scores(row.read(path.lm_states), path.lm_states, row.vocab_size)
        fused = fused + (row.weights[:, None] * per_lm[:, : len(candidates)]).sum(0)
    if row.ilm_weight:
        internal = model.internal_lm(path.prediction[0])
        fused = fused - row.ilm_weight * internal[candidates]
        fused[fused.isnan()] = -torch.inf  # impossible classes, for which -inf minus -inf gives NaN
    fused[candidates == model.blank_id] = -torch.inf
    if bool(fused.max() > -torch.inf):
        token = int(fused.argmax())
    return token, float(internal[token]) if row.ilm_weight else 0.0
