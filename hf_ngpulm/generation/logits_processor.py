"""Fuse an n-gram language model with attention decoders in Transformers' `generate` (shallow fusion)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from ..common.shown import shown
from ..decoding.options import AttentionOptions, takes
from ..engines.choice import engine_name
from ..fusion.fusion import Fusion
from ..fusion.rows import RowModels
from ..grammar.compiled import CompiledGrammar
from ..language_model.loading import loaded_models
from ..language_model.log_linear import parts_of
from ..language_model.model import NGramLM
from ..phrases.contexts import is_per_row
from ..search.attention_step import KINDS, TEXT, FusedRows, Roles, fuse, fuse_at, fuse_less, fuse_outside_loops, read
from ..search.attention_step.loops import end_loops
from .inside import Inside
from .internal import InternalLM
from .parts import Column, Part, internal_scores
from .transcripts import ends_of, is_windowed, no_timestamps_of, num_classes, padding_of, roles_of
from .whisper import WINDOW, Windowed, follow_recordings, rule_out_timestamps

LM_WEIGHT = 0.2  # default; low, as attention decoders have strong internal language models


class NGramLogitsProcessor(LogitsProcessor, Windowed):
    """Add the scores of an n-gram language model and of phrases to the scores of a speech recogniser's decoder.

        model.generate(**inputs, logits_processor=[NGramLogitsProcessor(lm, weight=0.2, model=model)])

    `generate` doesn't tell a processor which beam a row holds, nor which rows have ended. So the processor is stateless: it
    computes the LM's state from each row's last tokens. These are the tokens after the last control token (such as Whisper's
    `<|notimestamps|>`), without timestamps. The scores of several processors add up. Every search is supported: greedy,
    sampling, beam, assisted.

    Args:
        lm: a language model, or a list with one (or None) per recording; None for phrases alone.
        weight: weight of the LM's log-probabilities; a number, or a tensor with one per recording. By default, the weight and
            other settings that were tuned for this model are taken from the LM's config. Without tuned settings, the weight is
            0.2. The processor doesn't know `generate`'s number of beams, so it takes the newest settings (see
            `hf_ngpulm.config.tuned`).
        model: the model whose `generate` is called. Whisper's `generate` is extended to report the recordings of its rows (see
            `generation.whisper`).
        phrases: phrases to boost (hotwords): a `hf_ngpulm.PhraseBooster`, phrases from which to make a booster, or a list with
            a booster, phrases or None for each recording. A compiled grammar, `grammar.compiled(tokenizer)`, allows only its
            sentences.
        phrase_weight: factor of the phrases' bonuses; a number, or a tensor with one per recording.
        normalise_phrases: True (default) shifts probability towards phrases; False adds the bonuses, and a beam search may then
            prefer hypotheses that repeat a phrase. Without beams both give the same transcript. The default for a compiled
            grammar is False.
        tokenizer: the model's tokenizer or processor, to check that the LM was made for it, to find its special tokens, and to
            spell phrases. Required for LLM-based models, whose tokens include a prompt.
        start: token ids after which the transcript begins; by default the model's control tokens, or the tokenizer's special
            tokens.
        prompt_context: whether the LM reads text before the transcript (Whisper's previous text) as context (default False).
        unscored: "kept" (default): symbols that no LM scores (timestamps, control tokens, punctuation that the LM has never
            seen) keep the model's probability. The LM redistributes the remaining probability. "none" adds the LM's scores only
            to tokens that the LM scores. Unscored symbols then win because they have no LM cost.
        score_eos: whether `</s>` gets the LM's score for the end of a sentence; otherwise `</s>` is unscored. The default is
            True, but False for Whisper: its 30 s windows may hold several sentences, and an LM of single sentences would end
            the transcript after the first sentence. A `continued` LM expects further sentences, so with such an LM the default
            is True also for Whisper.
        ilm_weight: weight with which the scores of the decoder's internal LM are subtracted. These are the decoder's scores
            with zeros instead of the encoder's states (see `generation.internal`). A number, or a tensor with one per
            recording; 0 by default. A good value is about 0.7 times `weight`. With an internal LM, `weight` can be much larger
            than without, but each step needs a second decoder pass over a single frame. Only for encoder-decoders.
        source_lm, source_weight: an n-gram model of the recogniser's training text, whose scores are also subtracted, and its
            weight (by default half of `weight`).
        in_place: whether to write into the scores passed by `generate`. This isn't safe if `output_logits` returns the same
            tensor.
        engine: "auto" (by device), "reference", "cpu" or "gpu".

    Raises:
        ValueError: the LM has more tokens than the model; a weight, `lm` or `start` is invalid; or, in a call of the processor,
            the number of rows isn't a multiple of the number of recordings in `lm` or `weight`.
        TokenizerMismatchError: the LM was made for another tokenizer.
    """

    lm_guard: float | str = "off"  # of pipelines, which can decode again

    @takes(AttentionOptions)
    def __init__(
        self,
        lm: NGramLM | Sequence[NGramLM | None] | None = None,
        weight: float | Tensor | None = None,
        *,
        model: Any,
        phrases: Any = None,
        phrase_weight: float | Tensor | None = None,
        tokenizer: Any = None,
        in_place: bool = True,
        **options: Any,
    ) -> None:
        if isinstance(phrases, CompiledGrammar):  # whose penalties are meant as they are
            options.setdefault("normalise_phrases", False)
        if phrases is None and options.get("normalise_phrases") is not None:
            given = options["normalise_phrases"]
            raise ValueError(f"normalise_phrases={given!r} is given without phrases; pass phrases= too")
        device = getattr(model, "device", None)
        lm = loaded_models(lm, tokenizer, device)
        if options.get("source_lm") is not None:
            options["source_lm"] = loaded_models(options["source_lm"], tokenizer, device)
        weights = {"lm_weight": weight, "phrase_weight": phrase_weight}
        settings = AttentionOptions.remembered(lm, model, {**weights, **options})
        weight, phrase_weight = settings.pop("lm_weight"), settings.pop("phrase_weight")
        self.options = AttentionOptions.of(settings)
        weight, phrase_weight = LM_WEIGHT if weight is None else weight, 1.0 if phrase_weight is None else phrase_weight
        sources = self.options.source_lm, self.options.source_weight
        self.fusion = Fusion(lm, weight, phrases, phrase_weight, tokenizer, *sources)
        if not self.fusion.lms and phrases is None:
            raise ValueError("there is neither a language model nor phrases: pass lm or phrases=")
        if self.fusion.num_lms > (1 if sources[0] is None else 2):
            raise ValueError("`generate` takes one language model for each recording, not several as LogLinear")
        self._internal = self._internal_of(model, None)
        self.in_place = in_place
        self._model, self._tokenizer = model, tokenizer
        self._no_timestamps, self._ends = no_timestamps_of(model), sorted(ends_of(model))
        self._roles: list[Roles] = []
        self._columns: list[Column] = []
        self._parts: tuple[Any, list[Part]] | None = None
        self._cached_ends: tuple[Any, Tensor] | None = None
        self._known = self._automata()
        self.roles(num_classes(model) or self._known[0].vocab_size, torch.device("cpu"))
        follow_recordings(model)

    def __repr__(self) -> str:
        settings = {name.removeprefix("lm_"): value for name, value in self.fusion.told.items()}
        return shown(self, **settings, model=type(self._model).__name__, **self.options.told())

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Add the language models' scores to the scores of the next token.

        Args:
            input_ids: integers `[B, L]`, the tokens so far.
            scores: `[B, C]`, the model's logits or log-probabilities of the next token (natural log).

        Returns:
            Fused scores `[B, C]`, in the dtype of `scores`: the same tensor if `in_place`, otherwise a copy.
        """
        window = WINDOW.get()
        if window is not None:
            window.keep(self, input_ids, scores)
        if not self.in_place:
            scores = scores.clone()
        work = scores.detach().to(torch.float32).contiguous()
        input_ids = input_ids.to(scores.device, torch.int64).contiguous()
        which = len(scores) if window is None else self.recordings(len(scores))
        parts = self.parts(which, scores.shape[1], scores.device)
        only = parts[0]
        if len(parts) == 1 and only.is_one_call:
            self._rule_out_control(work, input_ids, only.fused, parts)
            fuse_outside_loops(work, input_ids, only.rows, only.roles, only.shared, self._ends_of(work))
        else:
            self._add_parts(work, input_ids, parts)
        if work.data_ptr() != scores.data_ptr():
            scores.copy_(work)
        return scores

    def _add_parts(self, scores: Tensor, input_ids: Tensor, parts: list[Part]) -> None:
        """Add all parts' scores to `scores`, float32 `[B, C]`, in place, but not in rows in a loop. `input_ids`: `[B, L]`."""
        in_loop = self.rule_out(scores, input_ids, parts)
        parts = [part.after(input_ids) for part in parts]
        if any(part.less is not None for part in parts):
            states = [read(input_ids, part.rows, part.roles, part.engine) for part in parts]
            self.add(scores, input_ids, [part.at(at) for part, at in zip(parts, states)], states, in_loop)
            return
        for part in parts:
            rows = part.rows._replace(starts=part.outside_loops(part.rows.starts, in_loop))
            fuse(scores, input_ids, rows, part.roles, part.shared, part.engine, part.keeps_sums)

    def add(
        self, scores: Tensor, input_ids: Tensor, parts: Sequence[Part], states: Sequence[Tensor], in_loop: Tensor,
        unheard: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Add all parts' scores to `scores`, float32 `[B, C]`, in place. `input_ids`: the tokens so far, `[B, L]`.

        Args:
            states: for each part, the automaton's state in each row.
            in_loop: bool `[B]`, rows that repeat a phrase. Nothing is added to such rows.
            unheard: the internal LM's logits `[B, C]`. If this is None and a part needs the logits, they are computed.
        """
        less = self.subtracted(input_ids, parts, states, scores.shape[1], unheard)
        for part, at in zip(parts, states):
            at = part.outside_loops(at, in_loop)
            if less is not None and part.less is not None:
                fuse_less(scores, less, at.masked_fill(~part.less, -1), part.rows, part.roles, part.shared, part.engine)
                at = at.masked_fill(part.less, -1)
            if not part.subtracted:
                fuse_at(scores, at, part.rows, part.roles, part.shared, part.engine, part.keeps_sums)

    def subtracted(
        self, input_ids: Tensor, parts: Sequence[Part], states: Sequence[Tensor], classes: int, unheard: Tensor | None = None
    ) -> Tensor | None:
        """Return the scores to subtract after tokens `[B, L]`, float32 `[B, C]`; None if nothing is subtracted. `states`,
        `unheard`: as for `add`.
        """
        if all(part.less is None for part in parts):
            return None
        summands = []
        if unheard is None and any(part.ilm_weights is not None for part in parts):
            assert self._internal is not None
            unheard = self._internal.logits(input_ids)
        for part, at in zip(parts, states):
            if part.subtracted:
                summands.append(torch.zeros((len(at), classes), device=at.device))
                rows = part.rows._replace(weights=-part.rows.weights)
                fuse_at(summands[-1], at, rows, part.roles, False, part.engine)
            elif part.ilm_weights is not None:
                assert unheard is not None
                summands.append(part.ilm_weights[:, None] * internal_scores(unheard, part.roles))
        return torch.stack(summands).sum(0)

    def rule_out(self, scores: Tensor, input_ids: Tensor, parts: Sequence[Part]) -> Tensor:
        """Rule out, in place, tokens that may not follow the tokens `[B, L]`.

        Such tokens are timestamps outside timestamp mode, tokens that would continue a loop, and tokens that would leave a
        grammar (see `generation.inside`). Rows without fusion stay unchanged. Return a bool mask `[B]` of the rows in a loop.
        In these rows only the model's scores count.
        """
        # Masks are used because selecting rows would synchronise with the GPU at each step.
        fused = parts[0].fused if len(parts) == 1 else torch.stack([part.fused for part in parts]).any(0)
        self._rule_out_control(scores, input_ids, fused, parts)
        return end_loops(scores, input_ids, parts[0].roles.roles, fused, self._ends_of(scores), parts[0].engine)

    def _rule_out_control(self, scores: Tensor, input_ids: Tensor, fused: Tensor, parts: Sequence[Part]) -> None:
        if self._no_timestamps is not None:
            rule_out_timestamps(scores, input_ids, self._no_timestamps, fused)
        for part in parts:
            if part.inside is not None:
                part.inside.rule_out(scores, input_ids, part.roles)

    def _ends_of(self, scores: Tensor) -> Tensor:
        """Return the classes that end transcripts, int64 `[E]`."""
        key = (scores.shape[1], scores.device)
        cached = self._cached_ends
        if cached is None or cached[0] != key:
            ends = [end for end in self._ends if 0 <= end < scores.shape[1]]
            self._cached_ends = cached = (key, torch.tensor(ends, dtype=torch.int64, device=scores.device))
        return cached[1]

    def with_phrases(self, phrases: Any, phrase_weight: float | Tensor = 1.0) -> NGramLogitsProcessor:
        """Return a copy with other phrases, which shares the language models. Only new phrases are compiled.

        `phrases=None` removes all phrases, which requires a language model.
        """
        changed = copy.copy(self)
        changed.fusion = self.fusion.with_phrases(phrases, phrase_weight)
        changed._parts = None
        changed._roles = []
        changed._known = changed._automata()
        return changed

    def with_weights(
        self, weight: float | Tensor | None = None, phrase_weight: float | Tensor | None = None, **more: float | Tensor | None
    ) -> NGramLogitsProcessor:
        """Return a copy with other weights: numbers, or tensors with one weight per recording. None keeps the present weight.

        `more` takes `ilm_weight` and `source_weight`.
        """
        changed = copy.copy(self)
        changed.fusion = self.fusion.with_weights(weight, phrase_weight, more.get("source_weight"))
        changed.options = self.options.with_weights(more)
        changed._internal = changed._internal_of(self._model, self._internal)
        changed._parts = None
        return changed

    def select(self, recordings: Sequence[int]) -> NGramLogitsProcessor:
        """Return a copy for some recordings, in the order of `recordings`. The copy has the LMs, phrases and weights of these
        recordings.
        """
        selected = copy.copy(self)
        selected.fusion, selected.options = self.fusion.select(recordings), self.options.select(recordings)
        selected._parts = None
        return selected

    @property
    def subtracts_internal(self) -> bool:
        """Return whether an internal LM is subtracted in any row."""
        weight = self.options.ilm_weight
        return bool(weight.any()) if isinstance(weight, Tensor) else weight != 0

    @property
    def lists(self) -> dict[str, int]:
        """For each argument with a value per recording, return the number of values, by the argument's name."""
        fusion = self.fusion
        arguments = {"lm": fusion.per_row, "phrases": fusion.phrases if is_per_row(fusion.phrases) else None}
        arguments |= {"weight": fusion.weight, "phrase_weight": fusion.phrase_weight, "source_weight": fusion.source_weight}
        arguments["ilm_weight"] = self.options.ilm_weight
        return {name: len(values) for name, values in arguments.items() if isinstance(values, Sequence | Tensor)}

    @property
    def num_recordings(self) -> int | None:
        """Return the number of recordings; None if no argument has a value per recording.

        Raises:
            ValueError: the lists have different lengths.
        """
        counts = self.lists
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ValueError(f"different numbers of values, though each should have one per recording: {listed}")
        return next(iter(counts.values()), None)

    def roles(self, classes: int, device: torch.device) -> list[Roles]:
        """Return the roles of the model's classes (text, end of a transcript and others). There is one entry for each element
        of `_columns`.

        Language models with equal roles share an entry. Two language models have different roles if, for example, only one has
        seen a punctuation mark. If there are phrases, the last entry is for the phrases.
        """
        if not self._roles or len(self._roles[0].roles) != classes:
            largest = max(automaton.vocab_size for automaton in self._known)
            if largest > classes:
                raise ValueError(
                    f"the language model scores {largest} token ids, {type(self._model).__name__} has only {classes}; "
                    "use a language model made for its tokenizer"
                )
            columns = self._roles_of_columns(classes)
            if not bool((columns[0][1].roles & KINDS == TEXT).any()):
                raise ValueError("none of the language model's tokens is text to the model; is it made for this tokenizer?")
            self._columns, self._roles = [column for column, _ in columns], [roles for _, roles in columns]
        if self._roles[0].roles.device != device:
            self._roles = [roles.to(device) for roles in self._roles]
        return self._roles

    def scored(self, tokens: Tensor, lm: NGramLM) -> list[int]:
        """Return the tokens of a transcript, int64 `[L]`, that the language model `lm` of this processor scores."""
        classes = num_classes(self._model) or self._known[0].vocab_size
        every = self.roles(classes, torch.device("cpu"))
        roles = next(of for (_, lms), of in zip(self._columns, every, strict=True) if any(lm is each for each in lms))
        tokens = tokens.cpu()
        return tokens[(roles.roles[tokens] & KINDS) == TEXT].tolist()

    def _roles_of_columns(self, classes: int) -> list[tuple[Column, Roles]]:
        options, fusion = self.options, self.fusion
        given = (classes, self._tokenizer, options.start, options.prompt_context)
        by_roles: dict[bytes, tuple[Column, Roles]] = {}
        for lm in fusion.lms:
            by_default = lm.config.continued is not None or not is_windowed(self._model)
            scores_end = by_default if options.score_eos is None else options.score_eos
            roles = roles_of(self._model, [lm], *given, scores_end)
            by_roles.setdefault(roles.roles.numpy().tobytes(), (Column(0, []), roles))[0].lms.append(lm)
        columns = list(by_roles.values())
        if fusion.source is not None:
            columns.append((Column(1), roles_of(self._model, fusion.models, *given, False)))
        # Phrases have their own roles, because a mark that an LM has never seen may be part of a phrase, and because at the end
        # of a transcript unfinished phrases repay their bonus, whether or not an LM scores the end.
        if fusion.phrases is not None:
            known = self._known[len(fusion.models) :] or fusion.models
            columns.append((Column(fusion.num_lms), roles_of(self._model, known, *given, True)))
        return columns

    def recordings(self, batch_size: int) -> list[int]:
        """Return the index of each row's recording; -1 for padding rows. A recording has one row per beam or sequence."""
        count = self.num_recordings
        if count is None:
            return [0] * batch_size
        window = WINDOW.get()
        if window is not None:
            return window.recordings(batch_size, count)
        if batch_size % count:
            what = next(iter(self.lists))
            raise ValueError(f"{what} lists {count} recordings, but generate has {batch_size} rows, which is no multiple")
        return [row // (batch_size // count) for row in range(batch_size)]

    def parts(self, recordings: list[int] | int, classes: int, device: torch.device) -> list[Part]:
        """Return the parts to add to the scores, language models first, then phrases.

        `recordings`: a list with the recording of each row, or the total number of rows. If only the number is given, each
        recording has the same number of rows.
        """
        key = (recordings, classes, device)
        cached = self._parts  # read once, because another thread may replace it
        if cached is None or cached[0] != key:
            recordings = self.recordings(recordings) if isinstance(recordings, int) else recordings
            if self.num_recordings is None:
                recordings = [min(recording, 0) for recording in recordings]
            every = self.fusion.rows(self.num_recordings or 1, device)
            which = torch.tensor(recordings, dtype=torch.int64, device=device)
            outside, which = which < 0, which.clamp(min=0)
            length = max(automaton.context_length for automaton in self._known)
            parts, engine = [], engine_name(self.options.engine, device)
            every_roles = self.roles(classes, device)
            differ = sum(bool(column.lms) for column in self._columns) > 1
            for (column, lms), roles in zip(self._columns, every_roles, strict=True):
                roots = every.states[:, column]
                while not torch.equal(backoffs := every.tensors.backoff_states[roots], roots):
                    roots = backoffs
                starts = torch.where(every.present[:, column], every.states[:, column], -1)
                elsewhere = outside | self._has_none_of(lms, which) if differ and lms else outside
                starts = torch.where(elsewhere, -1, starts[which]).to(torch.int32)
                weights = every.weights[which, column]
                rows = FusedRows(every.tensors, every.vocab_size, length, starts, roots[which].to(torch.int32), weights)
                of_lm, subtracted = column < every.num_lms, 0 < column < every.num_lms
                ilm_weights, less = self._less(every, which, starts >= 0) if of_lm and not subtracted else (None, None)
                weighted = weights != 0 if less is None else (weights != 0) | less
                shared = of_lm and self.options.unscored == "kept"
                keeps_sums = not of_lm and self.options.normalise_phrases
                fused = (starts >= 0) & weighted
                inside = None if of_lm else Inside.of(self._boosters(), which, roles, padding_of(self._model))
                more = every.lazy, every.lease, subtracted, less, ilm_weights, inside
                parts.append(Part(rows, roles, fused, shared, keeps_sums, engine, *more))
            if every.lazy is not None:  # lazy states stay valid only while the caller holds the parts
                return parts
            self._parts = cached = (key, parts)
        return cached[1]

    def _internal_of(self, model: Any, known: InternalLM | None) -> InternalLM | None:
        """Return the model's internal LM if it is subtracted, otherwise None. `known`: an object to reuse, or None."""
        if self.subtracts_internal and not self.fusion.models:
            raise ValueError("ilm_weight is given without a language model to make up for it: pass lm= too")
        return InternalLM(model) if known is None and self.subtracts_internal else known

    def _has_none_of(self, lms: list[NGramLM], recordings: Tensor) -> Tensor:
        """Return a bool mask `[B]` of the rows that have no language model, or whose language model isn't in `lms`."""
        has_one = [any(model is lm for model, _ in parts_of(row) for lm in lms) for row in self.fusion.per_row or ()]
        return ~torch.tensor(has_one, device=recordings.device)[recordings]

    def _less(self, every: RowModels, recordings: Tensor, has_lm: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the internal LM's weights `[B]`, and a bool mask `[B]` of the rows in which any score is subtracted. Weights
        that are all 0, or a mask that is False in all rows, are replaced by None.

        Scores are subtracted only in rows with a language model (`has_lm`). `every`: the models of all recordings.
        """
        weight: Any = self.options.ilm_weight
        ilm = torch.as_tensor(weight, dtype=torch.float32, device=recordings.device).expand(every.states.shape[:1])[recordings]
        ilm = torch.where(has_lm, ilm, 0.0)
        less = (ilm != 0) | (has_lm & (every.weights[recordings, 1 : every.num_lms] != 0).any(1))
        return (ilm if bool((ilm != 0).any()) else None), (less if bool(less.any()) else None)

    def _automata(self) -> list[Any]:
        """Return all distinct language models and boosters."""
        boosters = {id(booster): booster for booster in self._boosters() if booster is not None}
        return [*self.fusion.models, *boosters.values()] or [self.fusion.contexts.booster([])]

    def _boosters(self) -> list[Any]:
        """Return the boosters of phrases: a booster (or None) for each recording, or one booster for all recordings. Without
        phrases, the list is empty.
        """
        phrases = self.fusion.phrases
        rows = len(phrases) if is_per_row(phrases) else 1
        return [] if phrases is None else self.fusion.contexts.of_rows(phrases, rows)
