"""Score given transcripts with a decoder's acoustic model and language models. Acoustic scores are log-probabilities, summed
over all alignments.

A *reading* is such a transcript as a list of token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import ctc_loss

from ..language_model.log_linear import parts_of
from ..phrases import Booster
from ..search.networks.model import TransducerModel
from .ctc import CTCDecoder
from .ctc_defaults import bonuses_of
from .hypotheses import Hypothesis

NO_SCORE, IMPOSSIBLE = -torch.inf, -1e6


def ctc_forced(log_probs: Tensor, readings: Sequence[Sequence[int]], blank: int) -> Tensor:
    """Return the log-probability of each reading under CTC, float64 `[N]`; -inf if a reading doesn't fit into the frames.

    Args:
        log_probs: `[T, C]`.
        readings: N token sequences.
    """
    # Only a few classes matter, so that it costs little to repeat the frames for each reading.
    classes, places = torch.tensor([blank, *(token for each in readings for token in each)]).unique(return_inverse=True)
    sizes = torch.tensor([len(each) for each in readings])
    frames = log_probs.cpu()[:, classes].double()[:, None].expand(-1, len(readings), -1)
    lengths = torch.full((len(readings),), len(log_probs))
    return -ctc_loss(frames, places[1:], lengths, sizes, blank=int(places[0]), reduction="none")


def transducer_forced(model: TransducerModel, frames: Tensor, readings: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return each reading's log-probability under a transducer, and under the transducer's internal LM: float64 `[N]`, `[N]`.

    In an RNN-T, a blank consumes one frame, and a token consumes none. In a TDT, each label has a duration, and a blank
    consumes at least one frame. An alignment ends when all frames are consumed.

    Args:
        frames: `[T, D]`.
        readings: N token sequences.
    """
    count, longest = len(readings), max(map(len, readings), default=0)
    tokens = torch.full((count, longest), model.blank_id, device=frames.device)
    for row, reading in enumerate(readings):
        tokens[row, : len(reading)] = torch.tensor(list(reading), device=frames.device)
    prediction, state = model.start(count, frames)
    predictions = [prediction]
    for place in range(longest):
        prediction, state = model.predict(tokens[:, place], state)
        predictions.append(prediction)
    predicted = torch.stack(predictions, 1)  # [N, U + 1, D]
    durations = [1] if model.durations is None else list(model.durations)
    steps = [0] if model.durations is None else durations
    alphas = torch.full((len(frames) + 1, count, longest + 1), NO_SCORE, dtype=torch.float64)
    alphas[0, :, 0] = 0.0
    for time in range(len(frames)):
        logits = model.join(frames[time].expand(count, longest + 1, -1), predicted).double().cpu()
        labels = logits[..., : model.vocab_size].log_softmax(-1)
        of_durations = logits[..., model.vocab_size :].log_softmax(-1)  # empty in an RNN-T
        blanks, chosen = labels[..., model.blank_id], labels[:, :-1].gather(2, tokens.cpu()[..., None])[..., 0]
        if 0 in steps:  # tokens of the same frame, one after the other
            same = chosen + (of_durations[:, :-1, steps.index(0)] if model.durations else 0.0)
            same = same.clamp(min=IMPOSSIBLE)  # the next lines subtract it
            before = torch.cat([same.new_zeros(count, 1), same.cumsum(1)], 1)
            alphas[time] = (alphas[time] - before).logcumsumexp(1) + before
        now = alphas[time].clone()
        for number, step in enumerate(durations):
            of_step = of_durations[..., number] if model.durations else torch.zeros_like(blanks)
            _add(alphas[min(time + max(step, 1), len(frames))], now + blanks + of_step)
            if step and model.durations:
                _add(alphas[min(time + step, len(frames))][:, 1:], now[:, :-1] + chosen + of_step[:, :-1])
    sizes = torch.tensor([len(reading) for reading in readings])
    internal = model.internal_lm(predicted[:, :-1]).double().cpu().gather(2, tokens.cpu()[..., None])[..., 0]
    inside = torch.arange(longest) < sizes[:, None]
    return alphas[-1].gather(1, sizes[:, None])[:, 0], internal.masked_fill(~inside, 0.0).sum(1)


def _add(to: Tensor, scores: Tensor) -> None:
    torch.logaddexp(to, scores, out=to)


def lm_scores(fusion: Any, readings: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return two scores of each reading by the language models, without and with the models' weights: float64 `[N]`, `[N]`.

    `fusion`: the `Fusion` of a decoder for a single row.
    """
    sizes = torch.tensor([len(reading) for reading in readings])
    tokens = torch.zeros((len(readings), max(int(sizes.max()), 1)), dtype=torch.int64)
    for row, reading in enumerate(readings):
        tokens[row, : len(reading)] = torch.tensor(list(reading), dtype=torch.int64)
    unweighted, weighted = torch.zeros((2, len(readings)), dtype=torch.float64)
    weight = float(fusion.weight[0]) if isinstance(fusion.weight, Tensor) else fusion.weight
    for lm, share in parts_of(fusion.of_all if fusion.per_row is None else fusion.per_row[0]):
        scores = lm.score_tokens(tokens.to(lm.device), sizes.to(lm.device))[0].double().sum(1).cpu()
        unweighted, weighted = unweighted + scores, weighted + weight * share * scores
    return unweighted, weighted


class ForcedScores:
    """Score readings of one row.

    Args:
        decoder: a `CTCDecoder` or a `TransducerDecoder` for a batch.
        frames: `[T, ...]`, the row's logits or encoder frames, without padding.
        row: the row's number in the batch.
        best: the row's best hypothesis. If `lm_guard` removed all language models from the row, no LM scores are added here.
    """

    def __init__(self, decoder: Any, frames: Tensor, row: int, best: Hypothesis | None = None) -> None:
        has_no_lm = best is not None and best.lm_left_out and not best.lm_score  # otherwise others remained
        self.decoder = decoder.without_lms([row], None) if has_no_lm else decoder.select([row])
        self.frames, self.row = frames, row

    def parts(self, readings: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return three scores of each reading, float64 `[N]` each: the acoustic score; the unweighted score of the language
        models; and the total that a search adds to the acoustic score, without phrases and `</s>`.
        """
        unweighted, added, subtracted = self.of_lms(readings)
        if isinstance(self.decoder, CTCDecoder):
            return ctc_forced(self.frames.float().log_softmax(-1), readings, self.decoder.blank_id), unweighted, added
        acoustic, internal = transducer_forced(self.decoder.model, self.frames, readings)
        return acoustic, unweighted, added - subtracted * internal

    def of_lms(self, readings: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, float]:
        """Return two scores of each reading, float64 `[N]` each: the unweighted score of the language models, and all that a
        search adds to the acoustic score (but no phrases, `</s>` or internal LM). Also return the internal LM's weight.
        """
        decoder, sizes = self.decoder, torch.tensor([len(reading) for reading in readings])
        models = decoder.fusion.rows(1, self.frames.device)
        unweighted, added = lm_scores(decoder.fusion, readings)
        if isinstance(decoder, CTCDecoder):
            bonus = 0.0 if decoder.options.is_greedy else float(bonuses_of(decoder.options.beta, models)[0])
            return unweighted, added + bonus * sizes, 0.0
        subtracted = decoder.ilm_weights(models)
        return unweighted, added, 0.0 if subtracted is None else float(subtracted[0])

    def boosted(self, decoder: Any) -> tuple[Booster, float]:
        """Return the phrases that `decoder` has for this row, and the phrases' weight."""
        phrases, weight = decoder.fusion.phrases, decoder.fusion.phrase_weight
        booster = phrases[self.row] if isinstance(phrases, list) else phrases
        return booster, float(weight[self.row]) if isinstance(weight, Tensor) else weight
