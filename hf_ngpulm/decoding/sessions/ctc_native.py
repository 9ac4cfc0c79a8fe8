"""Search CTC outputs on the CPU. The native core reads and writes the states of the slots."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...fusion.rows import RowModels
from ...search.ctc_beam import cpu as native_beam
from ...search.ctc_greedy import cpu as native_greedy
from ...search.ctc_rows import GOES_ON, PHRASES, SENTENCE, CtcModels, CtcRows, Frames
from ...search.history import TOKEN
from ..partials import Transcript
from .ctc import BLOCK_FRAMES, CTCSlots, beam_rules, label_rules, weighted_scores
from .session import Found, Switch, given_back

MOST_BYTES = 1 << 28  # of tails


class Prepared:
    """Models and options in the form that the core reads. Batches with the same models and options share the object."""

    def __init__(self, decoder: Any, models: RowModels) -> None:
        self._decoder, self._models = decoder, models
        self._automaton = None if models.lazy else nullcontext(Automaton.of(models.tensors, models.vocab_size))
        self.ends = [CtcModels.of(models, end) for end in (GOES_ON, PHRASES, SENTENCE)]
        self.label_rules = label_rules(decoder, models)
        self._beam_rules: dict[int, native_beam.NgpulmBeamRules] = {}  # by number of classes

    def automaton(self) -> AbstractContextManager[Automaton]:
        """Return a context manager that gives the automata to calls of the core."""
        return self._automaton or self._models.automaton()

    def beam_rules(self, classes: int) -> native_beam.NgpulmBeamRules:
        """Return the rules of beam search over logits of C = `classes`."""
        if classes not in self._beam_rules:
            rules = beam_rules(self._decoder, self._models, classes)
            self._beam_rules[classes] = native_beam.NgpulmBeamRules.of(rules, self._decoder.options.num_beams)
        return self._beam_rules[classes]


class CoreSlots(CTCSlots):
    """Slots on the CPU. The states of all searches are one structured array, which the native core reads and writes.

    Attributes:
        rows: structured array `[S]`. The fields of an element are the state of a slot's search.
        prepared: the models and options for the core. It is made on demand; each change of the models sets it to None.
    """

    rows: np.ndarray
    _prepared: Prepared | None = None
    _batch: CtcRows | None = None
    _first: np.ndarray | None = None  # all rows as they begin

    @property
    def block_frames(self) -> int:  # type: ignore[override]
        """Return the number of frames to search in one call. It is limited because each hypothesis needs memory for a token
        per frame.
        """
        return max(BLOCK_FRAMES, MOST_BYTES // (TOKEN.itemsize * max(1, self.history.sizes.size)))

    @property
    def prepared(self) -> Prepared:
        if self._prepared is None:
            self._prepared = Prepared(self.decoder, self.models)
        return self._prepared

    @prepared.setter
    def prepared(self, prepared: Prepared | None) -> None:
        self._prepared, self._first = prepared, None

    @property
    def are_max_probs(self) -> bool:
        """Return whether the core computes the confidences during the search."""
        return self.decoder.options.measure == "max_prob"

    def confidences(self, logits: Tensor, lengths: Tensor, measure: str) -> Tensor:
        if self.are_max_probs:
            return torch.empty(logits.shape[:2], dtype=torch.float32, device=logits.device)
        return super().confidences(logits, lengths, measure)

    @abstractmethod
    def empty(self, models: RowModels) -> np.ndarray:
        """Return the states of new searches, before the first frame: a structured array `[S]`."""

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.rows[slot : slot + 1] = self.empty(self.models.of(slice(slot, slot + 1)))

    def begin_all(self) -> None:
        self.frames[:], self.sums[:] = 0, 0.0
        self.history.begin_all()
        if self.delayed is not None:
            self.delayed.begin_all()
        if any(transcript.ids for transcript in self.transcripts):
            self.transcripts = [Transcript(self.decoder.writing) for _ in self.transcripts]
        if self._first is None:
            self._first = self.empty(self.models)
        self.rows[...] = self._first

    def place(self, slot: int, models: RowModels) -> None:
        super().place(slot, models)
        self.prepared = None

    def use(self, tensors: AutomatonTensors) -> None:
        super().use(tensors)
        self.prepared = None

    def widen(self, models: RowModels, shift: int) -> None:
        super().widen(models, shift)
        self.prepared = None
        old, self.rows, self._batch = self.rows, self.empty(models), None
        for name in old.dtype.names or ():
            column = self.rows[name][..., :-1] if name in ("lm_states", "lm_scores") else self.rows[name]
            column[...] = old[name] + shift if name == "lm_states" else old[name]

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        rows, (lm_states, lm_scores) = torch.from_numpy(slots), (self.rows["lm_states"], self.rows["lm_scores"])
        back = given_back(self.models, rows, torch.from_numpy(lm_states[slots]), self.decoder.options.engine)
        lm_scores[slots, :, -1] += back.numpy()
        lm_states[slots, :, -1] = contexts.states.numpy()
        self.add_fused(slots, (self.models.weights[rows, -1:] * back).numpy())
        super().switch(slots, contexts)
        self.prepared = None

    def search(
        self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, counts: np.ndarray, confidences: Tensor | None
    ) -> np.ndarray:
        before = self.rows.copy() if slots is None else self.rows[slots]
        measured = None if confidences is None else confidences.numpy()
        bad_frames = self.search_core(slots, logits, lengths, measured)
        if (bad_frames >= 0).any():
            is_bad = bad_frames >= 0
            self.rows[np.flatnonzero(is_bad) if slots is None else slots[is_bad]] = before[is_bad]
        return bad_frames

    @abstractmethod
    def search_core(
        self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, confidences: np.ndarray | None
    ) -> np.ndarray:
        """Search frames in the core. The arguments and the result are as for `search`. Afterwards the states of slots with a
        broken frame are undefined; `search` restores these states.
        """

    def batch(self, slots: np.ndarray | None) -> CtcRows:
        """Return the states of some slots (all if None) as a struct that the core reads and writes."""
        if slots is not None:
            return CtcRows.of(slots, self.rows, self.frames, self.sums)
        if self._batch is None:
            self._batch = CtcRows.of(None, self.rows, self.frames, self.sums)
        return self._batch


class CoreGreedySlots(CoreSlots):
    """Greedy search on the CPU."""

    def __init__(self, decoder: Any, models: RowModels) -> None:
        super().__init__(decoder, models, 1)
        self.rows = self.empty(models)

    def empty(self, models: RowModels) -> np.ndarray:
        rows = np.zeros(len(models.states), dtype=native_greedy.greedy_of(models.states.shape[1]))
        rows["lm_states"], rows["before"] = models.states.numpy()[:, None], self.decoder.blank_id
        return rows

    def search_core(
        self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, confidences: np.ndarray | None
    ) -> np.ndarray:
        prepared, (rows, width, _) = self.prepared, logits.shape
        with prepared.automaton() as automaton:
            return native_greedy.search(
                automaton, Frames.of(logits, lengths, self.decoder.blank_id), prepared.label_rules, self.batch(slots),
                self.rows["lm_states"][:, 0], (rows, width), confidences, self.are_max_probs,
                self.history.with_room(slots, width), None,
            )  # fmt: skip

    def live(self) -> np.ndarray:
        return np.ones((len(self.frames), 1), dtype=np.bool_)

    def still_open(self, slots: np.ndarray) -> np.ndarray:
        return self.rows["before"][slots, 0] != self.decoder.blank_id

    def _scores(self, rows: slice) -> np.ndarray:
        weighted = self.models.weights[rows].numpy() * self.rows["lm_scores"][rows, 0]
        return self.rows["acoustic_scores"][rows] + weighted.sum(1)

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(slots), dtype=np.int64), self._scores(slice(None))[slots]

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        columns = (self._scores(rows)[:, None], self.rows["lm_scores"][rows], self.rows["lm_states"][rows])
        scores, lm_scores, lm_states = map(torch.from_numpy, columns)
        ended = self.models.of(rows).at_end(scores, lm_scores, lm_states, False, self.decoder.options.engine)
        totals, of_lms, of_phrases = (values[:, 0].tolist() for values in ended)
        return [[Found(0, row)] for row in zip(totals, self.rows["acoustic_scores"][rows].tolist(), of_lms, of_phrases)]


class CoreBeamSlots(CoreSlots):
    """Beam search on the CPU."""

    def __init__(self, decoder: Any, models: RowModels) -> None:
        self.num_beams = decoder.options.num_beams
        super().__init__(decoder, models, self.num_beams)
        self.rows = self.empty(models)

    def empty(self, models: RowModels) -> np.ndarray:
        return native_beam.empty_beams(self.num_beams, models.states)

    def add_fused(self, slots: np.ndarray, more: np.ndarray) -> None:
        self.rows["fused"][slots] += more

    def not_acoustic(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lm_scores, sizes = (self.rows[name][slots] for name in ("lm_scores", "sizes"))
        return self.rows["fused"][slots].astype(np.float64), weighted_scores(self, slots, lm_scores, sizes)

    def search_core(
        self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, confidences: np.ndarray | None
    ) -> np.ndarray:
        frames, (rows, width, classes) = Frames.of(logits, lengths, self.decoder.blank_id), logits.shape
        rules, tails = self.prepared.beam_rules(classes), self.history.with_room(slots, width)
        with self.prepared.automaton() as automaton:
            return native_beam.search(
                automaton, frames, rules, self.batch(slots), (rows, width), confidences, self.are_max_probs, tails, None
            )

    def live(self) -> np.ndarray:
        return native_beam.is_there(self.rows)

    def standing(self, slots: np.ndarray) -> np.ndarray:
        rows = self.rows[slots]
        with np.errstate(invalid="ignore"):  # places without a hypothesis
            return np.logaddexp(rows["blank_scores"], rows["token_scores"]) + rows["fused"]

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places, _, scores = self._rank(slots, GOES_ON, 1)
        return places[:, 0], scores[:, 0, 0]

    def _rank(self, slots: np.ndarray | None, end: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        prepared, count = self.prepared, len(self.rows if slots is None else slots)
        joins_texts, batch = self.decoder.options.merge == "text", self.batch(slots)
        with prepared.automaton() as automaton:
            return native_beam.rank(automaton, prepared.ends[end], batch, count, self.num_beams, joins_texts, most)

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        slots = None if rows == slice(None) else np.arange(len(self.rows))[rows]
        places, _, scores = self._rank(slots, SENTENCE if score_eos else PHRASES, most)
        return [[Found(*both) for both in zip(*row) if both[1][0] > -np.inf] for row in zip(places.tolist(), scores.tolist())]
