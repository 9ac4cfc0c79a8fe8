"""Keep the states of language models and phrases in a search. The states advance at each step and move with the beams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from ...search.attention_step import follow, read
from ..logits_processor import NGramLogitsProcessor

# Processors that `generate` appends after all others, including the caller's.
AFTER = tuple(
    getattr(logits_process, name)
    for name in (
        "TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper",
        "TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper", "WatermarkLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor", "LogitNormalization",
    )
    if hasattr(logits_process, name)
)  # fmt: skip


class Scoring:
    """Apply all changes to a model's scores: logits processors, then the language model with its states, then more processors.

    Args:
        processors: processors prepared by `generate`. The LM is applied where `generate` puts processors from its caller.
        lm: the language models and phrases with their settings. None if there are no language models and no phrases.
        recordings: the index of each row's recording; -1 for padding rows.
        keeps_own: whether `own_log_probs` will be called.
        last: more processors, applied after the language model.
    """

    def __init__(
        self, processors: LogitsProcessorList, lm: NGramLogitsProcessor | None, recordings: list[int], keeps_own: bool = False,
        last: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        split = len(processors)
        while (lm is not None or last) and split and isinstance(processors[split - 1], AFTER):
            split -= 1
        self.before, self.after = LogitsProcessorList(processors[:split]), LogitsProcessorList([*last, *processors[split:]])
        self.lm, self.recordings, self.keeps_own = lm, recordings, keeps_own and lm is not None
        self._states: list[Tensor] | None = None  # of language models, and of phrases
        self._own: Tensor | None = None

    @property
    def asks_unheard(self) -> bool:
        """Return whether the internal LM's logits are needed."""
        return self.lm is not None and self.lm.subtracts_internal

    def __call__(self, input_ids: Any, scores: Any, unheard: Tensor | None = None) -> Tensor:
        """Return processed scores `[R, C]`, which may share memory with the input scores.

        Args:
            input_ids: tokens so far, `[R, L]`.
            scores: logits or log-probabilities of the next token, `[R, C]`.
            unheard: the internal LM's logits `[R, C]`; None if they aren't available.
        """
        scores = self.before(input_ids, scores)
        if self.lm is not None:
            if self.keeps_own:
                self._own = scores.clone()
            scores = scores.to(torch.float32).contiguous()
            tokens = input_ids.to(scores.device)
            self._parts = self.lm.parts(self.recordings, scores.shape[1], scores.device)
            if self._states is None:
                self._parts = [part.after(tokens) for part in self._parts]
                self._states = [read(tokens, part.rows, part.roles, part.engine) for part in self._parts]
            self._parts = [part.at(states) for states, part in zip(self._states, self._parts, strict=True)]
            in_loop = self.lm.rule_out(scores, tokens.contiguous(), self._parts)
            self.lm.add(scores, tokens, self._parts, self._states, in_loop, unheard)
        scores = self.after(input_ids, scores)
        if self._own is not None:
            self._own.masked_fill_(scores == -torch.inf, -torch.inf)
        return scores.to(torch.float32)

    def follow(self, tokens: Tensor, came_from: Tensor | None = None) -> None:
        """Advance the states by each row's next token, `[R]`. `came_from`, `[R]`: the row whose state each row continues."""
        if self.lm is not None and self._states is not None:
            for place, (states, part) in enumerate(zip(self._states, self._parts, strict=True)):
                states = states if came_from is None else states.index_select(0, came_from)
                self._states[place] = follow(states, tokens.contiguous(), part.rows, part.roles, part.engine)

    def own_log_probs(self, rows: Tensor, tokens: Tensor) -> Tensor | None:
        """Return the model's own log-probabilities of tokens `[N]` in rows `[N]` at the last step; None if not kept."""
        if self._own is None:
            return None
        return self._own[rows, tokens] - torch.logsumexp(self._own, 1)[rows]
