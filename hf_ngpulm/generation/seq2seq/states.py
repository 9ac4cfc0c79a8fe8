"""The side of language models and phrases in a search: states per row, carried from step to step and moved with the beams."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from ...search.attention_step import follow, read
from ..logits_processor import NGramLogitsProcessor

# What `generate` appends after all other processors, those of the caller included.
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
    """All that is done to a model's scores: logits processors, among them a language model that knows its states.

    Args:
        processors: as `generate` prepared them. The LM comes where one passed as a processor would.
        lm: what there is of language models, and how they score; None for none.
        recordings: the one that each row is of; -1 for rows that only fill up the batch.
        keeps_own: whether `own_log_probs` will be asked for.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        lm: NGramLogitsProcessor | None,
        recordings: list[int],
        keeps_own: bool = False,
    ) -> None:
        split = len(processors)
        while lm is not None and split and isinstance(processors[split - 1], AFTER):
            split -= 1
        self.before, self.after = LogitsProcessorList(processors[:split]), LogitsProcessorList(processors[split:])
        self.lm, self.recordings, self.keeps_own = lm, recordings, keeps_own and lm is not None
        self._states: list[Tensor] | None = None  # of language models, and of phrases
        self._own: Tensor | None = None

    @property
    def asks_unheard(self) -> bool:
        """Return whether it matters what the model would say if it had heard nothing."""
        return self.lm is not None and self.lm.subtracts_internal

    def __call__(self, input_ids: Any, scores: Any, unheard: Tensor | None = None) -> Tensor:
        """Return `[R, L]` tokens so far, `[R, C]` logits or log-probabilities of the next -> the same, processed, maybe in
        place. `unheard` are logits without anything heard, if they are at hand."""
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
        """Follow each row's next token `[R]`, and of the row `[R]` whose continuation it is now."""
        if self.lm is not None and self._states is not None:
            for place, (states, part) in enumerate(zip(self._states, self._parts, strict=True)):
                states = states if came_from is None else states.index_select(0, came_from)
                self._states[place] = follow(states, tokens.contiguous(), part.rows, part.roles, part.engine)

    def own_log_probs(self, rows: Tensor, tokens: Tensor) -> Tensor | None:
        """Return what the model alone gave to some tokens `[N]` of some rows `[N]` at the last step, if that is kept."""
        if self._own is None:
            return None
        return self._own[rows, tokens] - torch.logsumexp(self._own, 1)[rows]
