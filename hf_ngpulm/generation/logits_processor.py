"""NGramLogitsProcessor: a language model in Transformers' `generate`, for every model that transcribes with a decoder."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from ..arguments import one_of
from ..automaton.ops import check_engine
from ..fusion import Fusion
from ..language_model import NGramLM
from .fused import KINDS, TEXT, UNSCORED, Roles, Rows, fuse
from .transcripts import num_classes, roles_of
from .whisper import Window, follow_recordings

CHOICES = ("lm_weighted", "none")


class NGramLogitsProcessor(LogitsProcessor):
    """Adds an n-gram language model's scores to those of a speech recogniser's decoder.

        model.generate(**inputs, logits_processor=[NGramLogitsProcessor(lm, weight=0.2, model=model)])

    `generate` tells a processor neither which beam a row holds nor that rows are gone: nothing is remembered of rows. The LM's
    state is read off each row's last tokens, behind the last control token (Whisper's `<|notimestamps|>`), timestamps left
    out; of several processors, one for each LM, the scores add up. Any search goes: greedy, sampling, beam, assisted.

    Args:
        lm: a language model, or a list with one (or None) per recording.
        weight: of its log-probabilities; a number, or a tensor with one per recording.
        model: whose `generate` it is for. Whisper's is told to say which recordings its rows are (see `generation.whisper`).
        tokenizer: the model's tokenizer or processor, to check that the LM was made for it and to learn of its special tokens.
            Needed for LLM-based models, which have a prompt among their tokens; others' configs say enough.
        start: token ids that the transcript begins after; by default they are known, or the tokenizer's special tokens.
        prompt_context: whether the LM reads what stands before the transcript as its beginning: Whisper's previous text.
        unscored: "lm_weighted" gives symbols that no LM scores (timestamps, control tokens) the weight of an LM that is as
            sure of them as the model is, so that they are no likelier for having no LM score; "none" leaves them alone.
        score_eos: whether `</s>` has the LM's score of a sentence's end; otherwise it is one of those symbols.
        in_place: write into the tensor that is given, as `generate` expects of no processor but allows, unless
            `output_logits` asks for the same tensor.
        engine: "auto" (by device), "reference", "cpu" or "gpu".

    Raises:
        ValueError: an LM over more tokens than the model has; a weight, `lm` or `start` that isn't right; when called: another
            number of rows than `lm` or `weight` is for.
        TokenizerMismatchError: the LM was made for another tokenizer.
    """

    def __init__(
        self,
        lm: NGramLM | Sequence[NGramLM | None],
        weight: float | Tensor = 0.2,
        *,
        model: Any,
        tokenizer: Any = None,
        start: int | Iterable[int] | None = None,
        prompt_context: bool = False,
        unscored: str = "lm_weighted",
        score_eos: bool = True,
        in_place: bool = True,
        engine: str = "auto",
    ) -> None:
        self.fusion = Fusion(lm, weight)
        self.weighted = one_of("unscored", unscored, CHOICES) == "lm_weighted"
        if self.weighted and float(torch.as_tensor(self.fusion.weight).min()) <= -1:
            raise ValueError(f"unscored='lm_weighted' takes weights above -1, got {weight}")
        self.in_place = in_place
        self.engine = check_engine(engine)
        self.window: Window | None = None  # of a long recording, while Whisper decodes it
        if tokenizer is not None:
            for each in self.fusion.models:
                each.check_tokenizer(tokenizer)
        self._settings = (model, tokenizer, start, prompt_context, score_eos)
        self._roles: Roles | None = None
        self._rows: tuple[Any, Rows] | None = None
        self.roles(num_classes(model) or self.fusion.models[0].vocab_size, torch.device("cpu"))
        follow_recordings(model)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`[B, L]` tokens so far, `[B, C]` logits or log-probabilities of the next -> the same, fused."""
        if not self.in_place:
            scores = scores.clone()
        work = scores.detach().to(torch.float32).contiguous()
        roles = self.roles(scores.shape[1], scores.device)
        input_ids = input_ids.to(scores.device, torch.int64).contiguous()
        fuse(work, input_ids, self.rows(len(scores), scores.device), roles, self.weighted, self.engine)
        if work.data_ptr() != scores.data_ptr():
            scores.copy_(work)
        return scores

    def undone(self, input_ids: Tensor, scores: Tensor, recording: int | None = None) -> Tensor:
        """The model's own scores of steps at which no later processor has ruled any token out.

        Args:
            input_ids: int64 `[T, L]`, the tokens before each step, with -1 before them.
            scores: `[T, C]`, what came out for them.
            recording: the one that they are all of, if there is one LM or weight per recording.
        """
        rows = self.rows_of([recording or 0] * len(scores), scores.device)
        roles = self.roles(scores.shape[1], scores.device)
        lm = torch.zeros(scores.shape, device=scores.device)
        fuse(lm, input_ids, rows._replace(weights=torch.ones_like(rows.weights)), roles, False, self.engine)
        weight = rows.weights[:, None]
        own = scores - weight * lm
        if self.weighted:
            # Of the rule's sums of exp: that of scored tokens has come out as Z_scored^(1 + w) / Z^w, that of the others' roots
            # as Z_others / Z^(w / (1 + w)); which gives Z, and then Z_scored.
            unscored = roles.roles & KINDS == UNSCORED
            roots = scores / (1 + weight)
            total = torch.logsumexp(own.masked_fill(unscored, -torch.inf), 1, keepdim=True)
            rest = torch.logsumexp(roots.masked_fill(~unscored, -torch.inf), 1, keepdim=True)
            normaliser = (1 + weight) * torch.logaddexp(total / (1 + weight), rest)
            scored = (total + weight * normaliser) / (1 + weight)
            own = torch.where(unscored, roots + weight / (1 + weight) * normaliser, own - weight * (scored - normaliser))
        idle = (rows.starts < 0) | (rows.weights == 0)
        return torch.where(idle[:, None] | (scores == -torch.inf), scores, own)

    def select(self, recordings: Sequence[int]) -> NGramLogitsProcessor:
        """The same processor for a `generate` of some of the recordings that `lm` and `weight` list, in this order."""
        selected = copy.copy(self)
        selected.fusion = self.fusion.select(recordings)
        selected.window = selected._rows = None
        return selected

    @property
    def num_recordings(self) -> int | None:
        """How many there must be; None if all have the same LM and weight."""
        if self.fusion.per_row is not None:
            return len(self.fusion.per_row)
        return len(self.fusion.weight) if isinstance(self.fusion.weight, Tensor) else None

    def roles(self, classes: int, device: torch.device) -> Roles:
        """What each class of the model is."""
        if self._roles is None or len(self._roles.roles) != classes:
            largest = self.fusion.models[0].vocab_size
            if largest > classes:
                raise ValueError(
                    f"the language model scores {largest} token ids, {type(self._settings[0]).__name__} has only {classes}; "
                    "use a language model made for its tokenizer"
                )
            model, *settings = self._settings
            self._roles = roles_of(model, self.fusion.models, classes, *settings)
            if not bool((self._roles.roles & KINDS == TEXT).any()):
                raise ValueError("none of the language model's tokens is text to the model; is it made for this tokenizer?")
        if self._roles.roles.device != device:
            self._roles = self._roles.to(device)
        return self._roles

    def rows(self, batch_size: int, device: torch.device) -> Rows:
        """What LM each of some rows has: as many to a recording as there are beams, or sequences to return."""
        count = self.num_recordings
        if count is None:
            return self.rows_of([0] * batch_size, device)
        if self.window is not None:
            return self.rows_of(self.window.recordings(batch_size, count), device)
        if batch_size % count:
            what = "lm" if self.fusion.per_row is not None else "weight"
            raise ValueError(f"{what} lists {count} recordings, but generate has {batch_size} rows, which is no multiple")
        return self.rows_of([row // (batch_size // count) for row in range(batch_size)], device)

    def rows_of(self, recordings: list[int], device: torch.device) -> Rows:
        """What LM the rows of some recordings have; -1 for rows that are of none."""
        if self.num_recordings is None:
            recordings = [min(recording, 0) for recording in recordings]
        if self._rows is None or self._rows[0] != (recordings, device):
            every = self.fusion.rows(self.num_recordings or 1, device)
            roots = every.states[:, 0]
            while not torch.equal(backoffs := every.tensors.backoff_states[roots], roots):
                roots = backoffs
            starts = torch.where(every.present[:, 0], every.states[:, 0], -1)
            which = torch.tensor(recordings, device=device)
            outside, which = which < 0, which.clamp(min=0)
            length = max(model.context_length for model in self.fusion.models)
            starts = torch.where(outside, -1, starts[which]).to(torch.int32)
            rows = Rows(every.tensors, every.vocab_size, length, starts, roots[which], every.weights[which, 0])
            self._rows = ((recordings, device), rows)
        return self._rows[1]
