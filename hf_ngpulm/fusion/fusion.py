"""Choose the language models, the phrases and the weights for each row of a batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from ..automaton import pool as pools
from ..automaton.pool import AutomatonPool, Place
from ..automaton.tensors import AutomatonTensors
from ..common.checks import ROW_WEIGHTS, WEIGHT, check
from ..common.pickling import WithoutCaches
from ..grammar.compiled import CompiledGrammar
from ..language_model.log_linear import LogLinear, parts_of
from ..language_model.model import NGramLM
from ..lexicon import lazy_states
from ..lexicon.lazy_search import LazySearch
from ..phrases import Booster
from ..phrases.contexts import Contexts, is_per_row
from ..phrases.phrases import check_factor
from .rows import Lease, RowModels, no_models, select_rows, weights_of

LM_WEIGHT = 0.8  # the default weight
SOURCE_SHARE = 0.5  # default weight of the source domain's model, as a share of the LM weight
# A pool keeps at most this many contexts after their batches, with at most this many arcs in total.
KEPT_CONTEXTS, KEPT_ARCS = 1024, 1 << 24


class Fusion(WithoutCaches, caches={"_leases": WeakSet, "_pools": dict, "_shared": lambda: None}):
    """Language models and phrases, with their weights. Either all rows share one model, or each row has its own model or None.
    The same holds for phrases.

    The automata of a batch are copied into a pool. The copies stay in the pool, so the next batch reuses them.

    Args:
        lm: for all rows, a model, a `LogLinear` of several models, or None. Or a sequence with one of these values for each
            row.
        lm_weight: a number, or a tensor `[B]` with a weight per row.
        phrases: for all rows, a `PhraseBooster`, phrases from which to make a `PhraseBooster`, or None. Or a sequence with one
            of these values for each row.
        phrase_weight: a number, or a tensor `[B]` with a weight per row.
        tokenizer: the tokenizer that spells the phrases.
        source_lm: a model of the recogniser's training text. Its log-probabilities are subtracted in rows with a language
            model. In these rows `source_lm` is the last language model.
        source_weight: weight of `source_lm`, a number or a tensor `[B]`; None means half of `lm_weight`.

    Raises:
        ValueError: the models' vocabularies have different sizes, `lm` is an empty list, `source_lm` is given without `lm`,
            `source_weight` is given without `source_lm`, or a weight isn't a finite number.
        TypeError: a model isn't an `NGramLM`.
        TokenizerMismatchError: a model or booster was made for another tokenizer.
    """

    def __init__(
        self,
        lm: NGramLM | LogLinear | Sequence[NGramLM | LogLinear | None] | None = None,
        lm_weight: float | Tensor = LM_WEIGHT,
        phrases: Any = None,
        phrase_weight: float | Tensor = 1.0,
        tokenizer: Any = None,
        source_lm: NGramLM | None = None,
        source_weight: float | Tensor | None = None,
    ) -> None:
        self.per_row = list(lm) if isinstance(lm, Sequence) else None
        self.of_all: NGramLM | LogLinear | None = None if isinstance(lm, Sequence) else lm
        every = [parts_of(row) for row in ([lm] if self.per_row is None else self.per_row)]
        self.num_lms = max(map(len, every), default=0)  # number of models of the row that has the most
        self.models: list[NGramLM] = list({id(model): model for parts in every for model, _ in parts}.values())
        if self.per_row == []:
            raise ValueError("lm is an empty list; pass a language model, a list with one (or None) per row, or lm=None")
        if source_lm is None and source_weight is not None:
            raise ValueError(f"source_weight={source_weight!r} is given without source_lm=; pass the model, too")
        if source_lm is not None and lm is None:
            raise ValueError("source_lm is given without a language model in its place; pass lm=, too")
        self.source, self.source_weight = source_lm, source_weight
        if source_weight is not None:
            self.source_weight = check("source_weight", source_weight, ROW_WEIGHTS)
        self.lms = list(self.models)  # without `source_lm`
        if source_lm is not None:
            self.num_lms += 1
            self.models += [source_lm] if all(model is not source_lm for model in self.models) else []
        for model in self.models:
            if not isinstance(model, NGramLM):
                what = "source_lm" if model is source_lm else "lm"
                kind = type(model).__name__
                raise TypeError(f"{what} should be an NGramLM (see hf_ngpulm.NGramLM.from_pretrained), got {kind}")
            if tokenizer is not None:
                model.check_tokenizer(tokenizer)
        sizes = sorted({model.vocab_size for model in self.models})
        if len(sizes) > 1:
            raise ValueError(f"language models over vocabularies of different sizes {sizes} can't be used in one batch")
        self.weight = check("lm_weight", lm_weight, ROW_WEIGHTS)
        self.contexts = Contexts(tokenizer, sizes[0] if sizes else None)
        self._take_phrases(phrases, phrase_weight)
        self.grammar: CompiledGrammar | None = None
        self._leases: WeakSet[Lease] = WeakSet()
        self._pools: dict[torch.device, AutomatonPool] = {}
        self._shared: tuple[tuple[Any, ...], Any, RowModels] | None = None

    @property
    def told(self) -> dict[str, Any]:
        """Return the models, phrases and weights as keyword arguments of a decoder. A model that is None is omitted."""
        lm = self.of_all if self.per_row is None else self.per_row
        told: dict[str, Any] = {} if lm is None else {"lm": lm, "lm_weight": self.weight}
        if self.source is not None:
            told |= {"source_lm": self.source, "source_weight": self.source_weight}
        return told if self.phrases is None else {**told, "phrases": self.phrases, "phrase_weight": self.phrase_weight}

    @property
    def is_lazy(self) -> bool:
        """Return whether any language model is composed on the fly."""
        return any(model.is_lazy for model in self.models)

    @property
    def held(self) -> frozenset[str]:
        """Return the fingerprints of the phrases that searches and streams are using (see `Lease`)."""
        return frozenset().union(*(lease.fingerprints for lease in self._leases))

    @property
    def _lock(self) -> Any:
        """Return the lock for the pools. Hold the lock to change or read a pool, because any thread may decode."""
        return lazy_states.LOCK if self.is_lazy else pools.LOCK

    def rows(self, batch_size: int, device: torch.device, phrases: Any = None) -> RowModels:
        """Return the models of a batch of `batch_size` rows.

        Args:
            device: the device of the batch's logits.
            phrases: phrases of this batch; None means the phrases of this `Fusion`.

        Raises:
            ValueError: a list of models or phrases, or a tensor of weights, isn't for `batch_size` rows.
        """
        phrases = self.phrases if phrases is None else phrases
        boosters = None if phrases is None else self.contexts.of_rows(phrases, batch_size)
        models: list[Any] = [self.of_all] * batch_size if self.per_row is None else self.per_row
        if len(models) != batch_size:
            raise ValueError(f"lm lists {len(models)} language models, the batch has {batch_size} rows")
        grammar = self.grammar
        if not self.models and boosters is None and grammar is None:
            return no_models(batch_size, device)
        columns, weights = [], []
        if self.models:
            lm_weights = weights_of(self.weight, "lm_weight", batch_size, device)
            num_columns = self.num_lms - (self.source is not None)
            padding = [(None, 0.0)] * num_columns  # rows with fewer models than another row get empty columns
            every_part = [(*parts_of(row), *padding)[:num_columns] for row in models]
            for place in range(num_columns):
                columns.append([parts[place][0] for parts in every_part])
                factors = torch.tensor([parts[place][1] for parts in every_part], dtype=torch.float32, device=device)
                weights.append(lm_weights * factors)
            if self.source is not None:
                columns.append([None if row is None else self.source for row in models])
                subtracted = self.source_weight
                weights.append(
                    -SOURCE_SHARE * lm_weights
                    if subtracted is None
                    else -weights_of(subtracted, "source_weight", batch_size, device)
                )
        if grammar is not None:
            columns.append([grammar] * batch_size)
            weights.append(torch.ones(batch_size, device=device))
        if boosters is not None:
            columns.append(boosters)
            weights.append(weights_of(self.phrase_weight, "phrase_weight", batch_size, device))
            if any(booster is not None and booster.never_writes for booster in boosters):
                for booster, factor in zip(boosters, weights[-1].tolist()):
                    check_factor(booster, factor)
        automata = [[column[row] for column in columns] for row in range(batch_size)]
        present = torch.tensor([[model is not None for model in row] for row in automata], dtype=torch.bool, device=device)
        present = present.view(batch_size, len(columns))
        weighted = torch.where(present, torch.stack(weights, 1), 0.0)
        only = self.models[0] if len(self.models) == 1 and len(columns) == 1 and not self.models[0].is_lazy else None
        if only is not None and only.device == device:
            states = only.starts[:1].expand(batch_size)[:, None].contiguous()
            return RowModels(only.searched, only.vocab_size, states, weighted, present, self.num_lms)
        followed = [booster for booster in (grammar, *(boosters or ())) if booster is not None]
        lease = Lease(booster.fingerprint for booster in followed)
        with self._lock:
            self._leases.add(lease)
            pool = self._pool(device, followed)
            starts = [[0 if model is None else pool.places[_key(model)].start for model in row] for row in automata]
            states = torch.tensor(starts, dtype=torch.int32, device=device).view(batch_size, len(columns))
            composed = [model.automaton for model in self.models if model.is_lazy]
            lazy = LazySearch(pool, composed) if composed else None
            of_pool = (pool.tensors, pool.vocab_size, states, weighted, present, self.num_lms, lazy, lease)
            return RowModels(*of_pool, grammars=None if grammar is None else [grammar] * batch_size)

    def shared_rows(self, batch_size: int, device: torch.device, phrases: Any = None) -> RowModels:
        """Return the same as `rows`. Don't change the result, because batches with the same models and size may share it."""
        lm, grammar = self.of_all, self.grammar
        varied = (
            self.source is not None
            or phrases is not None
            or self.phrases is not None
            or self.per_row is not None
            or isinstance(self.weight, Tensor)
        )
        shared = grammar if lm is None else lm
        if varied or not isinstance(shared, NGramLM | CompiledGrammar):
            return self.rows(batch_size, device, phrases)
        if isinstance(lm, NGramLM) and lm.is_lazy:
            is_alone = grammar is None and device.type == lm.device.type == "cpu"
            return self._lazy_rows(lm, batch_size) if is_alone else self.rows(batch_size, device, phrases)
        kind: tuple[Any, ...] = (batch_size, device, self.weight)
        of = shared.searched.arc_offsets  # a model that moves to another device gets new tensors
        cached = self._shared  # read once, as other threads may replace it
        if cached is None or cached[0] != kind or cached[1] is not of:
            self._shared = cached = kind, of, self.rows(batch_size, device)
        return cached[2]

    def shares(self, models: RowModels) -> bool:
        """Return whether `models` is the cached result of `shared_rows`. The next batch may get the same result."""
        return self._shared is not None and self._shared[2] is models

    def _lazy_rows(self, lm: NGramLM, batch_size: int) -> RowModels:
        """Return rows with one lazily composed language model, which is searched without a copy in a pool."""
        with self._lock:
            lazy = LazySearch(None, [lm.automaton])
        states = lm.starts.cpu()[:1].expand(batch_size)[:, None].contiguous()
        weights = torch.full((batch_size, 1), float(self.weight))
        return RowModels(lazy.tensors, lm.vocab_size, states, weights, torch.ones_like(weights, dtype=torch.bool), 1, lazy)

    def row(self, model: NGramLM | LogLinear | None, lm_weight: float, device: torch.device) -> RowModels:
        """Return the models of a single row, with the phrases that all rows share.

        Args:
            model: a language model of this `Fusion`, or None.
            lm_weight: the model's weight.

        Raises:
            ValueError: this `Fusion` doesn't have the model, or the weight isn't a finite number.
        """
        rows = [self.of_all] if self.per_row is None else self.per_row
        listed = {id(other): other for other in rows if other is not None}.values()
        if model is not None and all(other is not model for other in listed):
            raise ValueError(f"this lm isn't among the decoder's {len(listed)}; make the decoder with it too: lm=[...]")
        one = copy.copy(self)
        one.per_row = [model] if self.models else None
        one.weight = check("lm_weight", lm_weight, WEIGHT)
        return one.rows(1, device)

    def places(self, contexts: Sequence[Any], device: torch.device) -> tuple[list[Place], list[Lease], AutomatonTensors]:
        """Add each context's phrases to the pool. Return three values: the phrases' places in the pool, a lease for each place,
        and the pool's tensors.

        Contexts without phrases have no place and no lease.
        """
        boosters = [self.contexts.booster(phrases) for phrases in contexts]
        followed = [booster for booster in boosters if booster is not None]
        leases = [Lease([booster.fingerprint]) for booster in followed]
        with self._lock:
            self._leases.update(leases)
            pool = self._pool(device, followed)
            return [pool.places[_key(booster)] for booster in followed], leases, pool.tensors

    def in_pool(self, models: RowModels, device: torch.device) -> tuple[RowModels, int]:
        """Return `models` with automata that are in the pool. Also return the number that was added to all automaton states."""
        nothing = self.contexts.booster([])
        with self._lock:
            pool, shift = self._pool(device, [] if nothing is None else [nothing]), 0
            if models.num_lms and models.tensors.arc_offsets is self.models[0].searched.arc_offsets:
                shift = pool.places[_key(self.models[0])].states[0]
            return models._replace(tensors=pool.tensors, vocab_size=pool.vocab_size, states=models.states + shift), shift

    def select(self, rows: Sequence[int]) -> Fusion:
        """Return a copy for a batch of the selected rows. `rows` are the indices of these rows, in the order of the batch. The
        copy shares the pools.
        """
        selected = copy.copy(self)
        if self.per_row is not None:
            selected.per_row = [self.per_row[row] for row in rows]
        if is_per_row(self.phrases):
            selected.phrases = [self.phrases[row] for row in rows]
        selected.weight = select_rows(self.weight, rows)
        selected.phrase_weight = select_rows(self.phrase_weight, rows)
        selected.source_weight = select_rows(self.source_weight, rows)
        return selected

    def with_lms(self, lms: Sequence[NGramLM | LogLinear | None] | None) -> Fusion:
        """Return a copy in which row i follows `lms[i]`, which must be a model of this `Fusion` (or None). If `lms` is None, no
        row follows a model.
        """
        changed = copy.copy(self)
        changed.per_row, changed.of_all, changed._shared = None if lms is None else list(lms), None, None
        if lms is None:
            changed.models, changed.lms, changed.num_lms = [], [], 0
            changed.source, changed.source_weight = None, None
        return changed

    def with_grammar(self, grammar: CompiledGrammar | None) -> Fusion:
        """Return a copy in which all rows follow a grammar. The grammar must be compiled for the rows' tokenizer. The copy
        shares the pools.
        """
        changed = copy.copy(self)
        changed.grammar, changed._shared = grammar, None
        return changed

    def with_phrases(self, phrases: Any, phrase_weight: float | Tensor) -> Fusion:
        """Return a copy with other phrases. The copy shares the pools, including the phrases that are already in the pools."""
        changed = copy.copy(self)
        changed._take_phrases(phrases, phrase_weight)
        return changed

    def with_weights(
        self,
        lm_weight: float | Tensor | None = None,
        phrase_weight: float | Tensor | None = None,
        source_weight: float | Tensor | None = None,
    ) -> Fusion:
        """Return a copy with other weights. None keeps the present weight. Raises ValueError if a weight isn't a finite number,
        or if `source_weight` is given but there is no source LM.
        """
        changed = copy.copy(self)
        if source_weight is not None:
            if self.source is None:
                raise ValueError("source_weight is passed, but the decoder has no source_lm: pass source_lm= to the decoder")
            changed.source_weight = check("source_weight", source_weight, ROW_WEIGHTS)
        if lm_weight is not None:
            changed.weight = check("lm_weight", lm_weight, ROW_WEIGHTS)
        if phrase_weight is not None:
            changed.phrase_weight = check("phrase_weight", phrase_weight, ROW_WEIGHTS)
        return changed

    def _take_phrases(self, phrases: Any, phrase_weight: float | Tensor) -> None:
        self.phrase_weight = check("phrase_weight", phrase_weight, ROW_WEIGHTS)
        # Make the boosters before any audio arrives, so that mistakes show early. Also, `phrases` may be an iterator, which can
        # be read only once.
        self.phrases: Any = None
        if is_per_row(phrases):
            self.phrases = self.contexts.of_rows(phrases, len(phrases))
        elif phrases is not None:
            self.phrases = self.contexts.booster(phrases)

    def _pool(self, device: torch.device, boosters: Sequence[Booster]) -> AutomatonPool:
        """Add all language models and the boosters to the pool of a device. Return the pool.

        The caller must hold the lock, and must have added leases of the boosters to `_leases`.
        """
        pool = self._pools.get(device)
        if pool is None:
            vocab_size = self.models[0].vocab_size if self.models else boosters[0].vocab_size if boosters else 1
            pool = AutomatonPool(vocab_size, device)
            if self.models or boosters:
                self._pools[device] = pool
            for model in self.models:  # the pool holds copies, as the caller's models stay on their device
                if not model.is_lazy:
                    pool.add(_key(model), model.automaton)
        for model in self.models:
            if model.is_lazy:
                model.automaton.join_pool(pool)
        before = len(pool.places)
        for booster in boosters:
            key = _key(booster)
            pool.add(key, booster)
            pool.places[key] = pool.places.pop(key)  # the least recently used key comes first
        if len(pool.places) > before:
            self._make_room(pool)
        return pool

    def _make_room(self, pool: AutomatonPool) -> None:
        """Drop phrases without a lease from the pool until the pool's numbers of phrases and arcs are within the limits. The
        least recently used phrases are dropped first.
        """
        sizes = {key: place.arcs[1] for key, place in pool.places.items() if isinstance(key, str)}
        count, arcs, held = len(sizes), sum(sizes.values()), self.held
        for key, size in sizes.items():
            if count <= min(KEPT_CONTEXTS, self.contexts.most) and arcs <= KEPT_ARCS:
                break
            if key not in held:
                pool.drop(key)
                count, arcs = count - 1, arcs - size


def _key(model: NGramLM | Booster) -> str | int:
    """Return the key of a model in a pool. For a booster, the key is its fingerprint, so boosters with the same phrases share a
    place. For a language model, the key is the id of its automaton. The automaton lives as long as the pool.
    """
    return model.fingerprint if isinstance(model, Booster) else id(model.automaton)
