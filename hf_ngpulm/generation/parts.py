"""Hold what is added to the scores of rows, each part by itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..engines.choice import is_native
from ..fusion.fusion import Lease
from ..language_model.model import NGramLM
from ..lexicon.lazy_search import LazySearch
from ..search.attention_step import KINDS, UNSCORED, Roles, Rows, text_of


class Part(NamedTuple):
    """Hold what is added to scores of which rows (`fused`, bool `[B]`), and how: see `fuse`; the engine is none that "auto"
    stands for. For lazy models: their search; of phrases: what keeps them where they are.

    What is `subtracted` is a source domain's model. Of the language model also from which rows, bool `[B]`, anything is
    subtracted, and the weights `[B]` of the internal LM: None if there is none in any row.
    """

    rows: Rows
    roles: Roles
    fused: Tensor
    shared: bool
    keeps_sums: bool
    engine: str
    lazy: LazySearch | None = None
    lease: Lease | None = None
    subtracted: bool = False
    less: Tensor | None = None
    ilm_weights: Tensor | None = None

    @property
    def is_one_call(self) -> bool:
        """Return whether the native core can do all of it, if it is all that there is: a language model's scores are added."""
        return is_native(self.engine, self.fused.device) and self.lazy is None and self.less is None and not self.keeps_sums

    def after(self, input_ids: Tensor) -> Part:
        """Return the same with all that is known of the states after some tokens `[B, L]`."""
        if self.lazy is None:
            return self
        if input_ids.shape[1]:
            text, lengths, _ = text_of(input_ids, self.roles)
            rows = self.rows
            self.lazy.read(rows.starts, rows.roots, text, lengths, rows.context_length)
        return self._replace(rows=self.rows._replace(tensors=self.lazy.tensors))

    def at(self, states: Tensor) -> Part:
        """Return the same with all that is known of some states `[B]`."""
        if self.lazy is None:
            return self
        self.lazy.enter(states.cpu().numpy().ravel())
        return self._replace(rows=self.rows._replace(tensors=self.lazy.tensors))


class Column(NamedTuple):
    """Say which of a row's models one is, and, of several language models, which of them are meant."""

    place: int
    lms: list[NGramLM] = []  # noqa: RUF012 (never changed)


def internal_scores(unheard: Tensor, roles: Roles) -> Tensor:
    """Return the internal LM's log-probabilities of what an LM scores, of logits of the model that has heard nothing, float32
    `[B, C]`."""
    unscored = (roles.roles & KINDS) == UNSCORED
    return torch.log_softmax(unheard.masked_fill(unscored, -torch.inf), 1).masked_fill(unscored, 0.0)
