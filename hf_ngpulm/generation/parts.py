"""Hold what is added to the scores of rows, each part by itself, and take it away again."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..fusion.fusion import Lease
from ..language_model.model import NGramLM
from ..lexicon.lazy_search import LazySearch
from ..search.attention_step import END, KINDS, TEXT, UNSCORED, Roles, Rows, fuse, read, text_of
from ..search.attention_step.loops import end_loops


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
        return self.engine == "cpu" and self.lazy is None and self.less is None and not self.keeps_sums

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


def undone(part: Part, input_ids: Tensor, scores: Tensor, less: Tensor | None) -> Tensor:
    """Return scores as they were before `fuse`, or with something that was subtracted, before `fuse_less`."""
    rows, roles = part.rows, part.roles
    lm = torch.zeros(scores.shape, device=scores.device)
    fuse(lm, input_ids, rows._replace(weights=torch.ones_like(rows.weights)), roles, False, part.engine)
    own = scores - rows.weights[:, None] * lm
    if less is not None:
        own = own + less.masked_fill((roles.roles & KINDS) != TEXT, 0.0)
    if part.shared:
        # The sum of exp of what the LM scores has stayed what it was, or gone down; the others went down with it.
        kinds = roles.roles & KINDS
        ends = kinds == END
        at_start = read(input_ids, rows, roles, part.engine) == rows.starts
        others = (kinds == UNSCORED) | (ends & at_start[:, None])
        scored, before = (each.masked_fill(others, -torch.inf) for each in (scores, own))
        needed = torch.logsumexp(before, 1, keepdim=True) - torch.logsumexp(scored, 1, keepdim=True)
        gained = needed.minimum(rows.weights.abs()[:, None] * roles.log_guess)  # no more than that was given
        of_best = scored.amax(1, keepdim=True) - (before.amax(1, keepdim=True) - gained)
        gained, needed, of_best = (torch.where(torch.isfinite(each), each, 0.0) for each in (gained, needed, of_best))
        if less is not None:
            gained, of_best = torch.zeros_like(gained), of_best - gained
        own = torch.where(others, scores - of_best.minimum(gained - needed).clamp(max=0.0), own - gained)
        # An end that the model was sure of hasn't been made less likely: then nothing was changed.
        end, fused_end, total = (
            torch.logsumexp(each, 1)
            for each in (own.masked_fill(~ends, -torch.inf), scores.masked_fill(~ends, -torch.inf), own)
        )
        kept = (fused_end < end) & (end > total - math.log(2)) & (less is None)
        own = torch.where(kept[:, None], scores, own)
    nothing = scores.new_empty((len(scores), 0), dtype=torch.float32)
    ends_of_none = torch.empty(0, dtype=torch.int64, device=scores.device)
    idle = ~part.fused | end_loops(nothing, input_ids.contiguous(), roles.roles, part.fused, ends_of_none, part.engine)
    return torch.where(idle[:, None] | (scores == -torch.inf), scores, own)
