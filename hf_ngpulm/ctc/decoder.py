"""CTCDecoder: from logits to hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..automaton.ops import check_engine
from ..errors import InvalidLogitsError
from ..fusion import Fusion, check_weight
from ..hypotheses import Hypothesis
from ..language_model import NGramLM
from ..vocabulary import tokenizer_of
from . import greedy

# What going on with a label costs under the rule "stay", per unit of LM weight: about what the average token costs in an LM.
# Without it staying would look cheap beside any new token, which the LM charges for.
STAY_COST = 3.0


class CTCDecoder:
    """Greedy decoding of CTC outputs, with n-gram language models fused in.

    Args:
        tokenizer_or_processor: the ASR model's tokenizer, or a processor that has it.
        lm: a language model for all rows, or a list with one (or None) per row; None decodes without.
        lm_weight: weight of the LM's log-probabilities, one number or a tensor `[B]` with one per row.
        repeats: when a frame goes on with the label before it: "stay" (if that scores better; the default), "label" (NeMo's
            rule) or "run", see `hf_ngpulm.ctc.greedy`. The three differ only with an LM; on the project's development set
            "stay" has the lowest word error rate.
        blank_id: class of the blank; the tokenizer's padding token if left out.
        engine: "auto" (by device), "reference", "cpu" or "gpu".

    Raises:
        TokenizerMismatchError: an LM was made for another tokenizer.
        ValueError: an argument out of range, or a tokenizer without padding token and no `blank_id`.
    """

    def __init__(
        self,
        tokenizer_or_processor: Any,
        lm: NGramLM | Sequence[NGramLM | None] | None = None,
        lm_weight: float | Tensor = 0.5,
        repeats: str = "stay",
        blank_id: int | None = None,
        engine: str = "auto",
    ) -> None:
        self.tokenizer = tokenizer_of(tokenizer_or_processor)
        if blank_id is None:
            blank_id = getattr(self.tokenizer, "pad_token_id", None)
        if blank_id is None or blank_id < 0:
            raise ValueError(f"the tokenizer has no padding token to be the blank; pass blank_id=... (got {blank_id})")
        if repeats not in greedy.RULES:
            raise ValueError(f"repeats must be one of {greedy.RULES}, got {repeats!r}")
        self.blank_id = blank_id
        self.repeats = repeats
        self.engine = check_engine(engine)
        check_weight(lm_weight, "lm_weight")
        self.fusion = None if lm is None else Fusion(lm, lm_weight)
        for model in self.fusion.models if self.fusion else []:
            model.check_tokenizer(self.tokenizer)

    def __call__(self, logits: Tensor, lengths: Tensor | None = None) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            logits: `[B, T, C]`, the model's outputs (log-probabilities will do).
            lengths: integers `[B]`, frames of each row; all T if left out.

        Returns:
            For each row a list with its best hypothesis.

        Raises:
            InvalidLogitsError: NaN or infinite logits, or a wrong shape.
            ValueError: lengths that don't fit the logits.
        """
        result = self.label_frames(logits, lengths)
        labels = result.labels.cpu()
        before = torch.nn.functional.pad(labels, (1, 0), value=self.blank_id)[:, :-1]
        begins = (labels != self.blank_id) & (labels != before)
        acoustic_scores, lm_scores = result.acoustic_scores.tolist(), result.lm_scores[:, 0].tolist()
        weights = [None] * len(labels) if self.fusion is None else self.fusion.row_weights(len(labels))
        hypotheses = []
        for row in range(labels.shape[0]):
            frames = torch.nonzero(begins[row])[:, 0]
            token_ids = labels[row, frames].tolist()
            weight = weights[row]
            lm_score = 0.0 if weight is None else lm_scores[row]
            hypotheses.append(
                [
                    Hypothesis(
                        text=self.decode_tokens(token_ids),
                        token_ids=token_ids,
                        score=acoustic_scores[row] + (weight or 0.0) * lm_score,
                        acoustic_score=acoustic_scores[row],
                        lm_score=lm_score,
                        token_frames=frames.tolist(),
                    )
                ]
            )
        return hypotheses

    def label_frames(self, logits: Tensor, lengths: Tensor | None = None) -> greedy.GreedyLabels:
        """The class of each frame, before blanks and repeats are dropped. Arguments and errors as for a call."""
        lengths = self._check(logits, lengths)
        batch_size, device = logits.shape[0], logits.device
        if self.fusion is None:
            result = self._label_without_lm(logits, lengths)
        else:
            automaton, states, weights = self.fusion.rows(batch_size, device)
            result = greedy.ctc_greedy(
                list(automaton.tensors),
                logits.detach(),
                lengths,
                states,
                weights,
                (STAY_COST * weights[:, 0]).contiguous(),
                self.blank_id,
                automaton.vocab_size,
                self.repeats,
                self.engine,
            )
        bad_frames = result.bad_frames.cpu()
        if bool((bad_frames >= 0).any()):
            row = int(torch.nonzero(bad_frames >= 0)[0, 0])
            raise InvalidLogitsError(
                f"the logits of row {row} hold NaN or infinity at frame {int(bad_frames[row])}: the model's output is broken "
                "(an overflow in half precision, or broken weights or audio)"
            )
        return result

    def decode_tokens(self, token_ids: list[int]) -> str:
        """Text of tokens from which repeats have been dropped."""
        return self.tokenizer.decode(token_ids, group_tokens=False)

    def _check(self, logits: Tensor, lengths: Tensor | None) -> Tensor:
        if logits.dim() != 3 or not logits.dtype.is_floating_point:
            raise InvalidLogitsError(
                f"logits should be floating point of the shape [B, T, C], got {logits.dtype} {tuple(logits.shape)}"
            )
        batch_size, frames, classes = logits.shape
        if self.blank_id >= classes:
            raise InvalidLogitsError(f"the blank has the id {self.blank_id}, but the logits have only {classes} classes")
        if lengths is None:
            return torch.full((batch_size,), frames, dtype=torch.int32, device=logits.device)
        lengths = torch.as_tensor(lengths)
        if lengths.shape != (batch_size,) or lengths.dtype.is_floating_point:
            raise ValueError(
                f"lengths should be {batch_size} integers, one per row, got {lengths.dtype} {tuple(lengths.shape)}"
            )
        if batch_size and (int(lengths.min()) < 0 or int(lengths.max()) > frames):
            raise ValueError(
                f"lengths should lie in 0..{frames}, the frames of the logits, got {int(lengths.min())}..{int(lengths.max())}"
            )
        return lengths.to(logits.device, torch.int32)

    def _label_without_lm(self, logits: Tensor, lengths: Tensor) -> greedy.GreedyLabels:
        log_probs = torch.log_softmax(logits.detach().float(), dim=-1)
        labels = logits.argmax(dim=-1)
        best = log_probs.gather(2, labels[..., None])[..., 0]
        inside = torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
        bad = inside & ~torch.isfinite(best)
        first_bad = torch.where(bad.any(1), bad.int().argmax(1) if logits.shape[1] else 0, -1)
        zeros = torch.zeros((logits.shape[0], 1), device=logits.device)
        return greedy.GreedyLabels(
            labels=torch.where(inside, labels, self.blank_id).to(torch.int32),
            acoustic_scores=torch.where(inside, best, 0.0).sum(dim=1),
            lm_scores=zeros,
            states=zeros.to(torch.int32),
            bad_frames=first_bad.to(torch.int32),
        )
