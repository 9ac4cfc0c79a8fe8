"""Sessions of CTC decoders. A slot holds the search of a stream or of a row of a batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...common.batches import packed_frames
from ...engines.choice import engine_name
from ...engines.devices import on_host
from ...fusion.fusion import RowModels, widened
from ...search import ctc_beam as beam
from ...search import ctc_greedy as greedy
from ...search.confidence import frame_confidence
from ...search.ctc_beam import cpu as native_beam
from ...search.ctc_beam.ranking import prefix_scores, rank, with_joined_texts
from ...search.ctc_graph import GraphState
from ...search.ctc_greedy import cpu as native_greedy
from ...search.ctc_rows import GOES_ON, PHRASES, SENTENCE, CtcModels, CtcRows
from ...search.frames import Frames
from ...search.history import TOKEN
from ..hypotheses import Hypothesis
from ..partials import Transcript
from .session import Found, Slots, Switch, given_back

State = TypeVar("State", beam.BeamState, GraphState, "GreedyState")
# Cost of continuing a label under the rule "stay", per unit of LM weight: about the LM's cost of an average token. Without it
# continuing would be cheaper than any new token, since only new tokens pay an LM score.
STAY_COST = 3.0
# Frames per block. After each block the tokens that all hypotheses share leave the history.
BLOCK_FRAMES = 256
MOST_BYTES = 1 << 28  # of tails


class CTCSlots(Slots):
    """Base class of the slots of greedy search, beam search and graph search."""

    goes_on = True
    block_frames: int | None = None  # largest number of frames per search; None: no limit

    def __init__(self, decoder: Any, models: RowModels, num_beams: int) -> None:
        super().__init__(decoder, models, num_beams)
        self.classes: int | None = None
        # Sums of the confidences of all frames of each slot's utterance.
        self.sums = np.zeros(len(models.states))

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.sums[slot] = 0.0

    def refusal(self, chunk: Tensor) -> str | None:
        if chunk.dim() != 2 or not chunk.dtype.is_floating_point or (self.classes or chunk.shape[1]) != chunk.shape[1]:
            of_width = "C" if self.classes is None else str(self.classes)
            return f"should be logits, floating point of the shape [T, {of_width}], got {chunk.dtype} {tuple(chunk.shape)}"
        if self.decoder.blank_id >= chunk.shape[1]:
            return f"has only {chunk.shape[1]} classes, but the blank has the id {self.decoder.blank_id}"
        return None

    def step(self, slots: np.ndarray, chunks: Sequence[Tensor]) -> np.ndarray:
        lengths = np.array([len(chunk) for chunk in chunks], dtype=np.int32)
        logits = torch.nn.utils.rnn.pad_sequence([chunk.detach() for chunk in chunks], batch_first=True)
        # If all slots are given in order, the search works in place instead of on copies.
        everything = np.array_equal(slots, np.arange(len(self.frames)))
        bad_frames = self.feed(None if everything else slots, logits, torch.from_numpy(lengths).to(logits.device), lengths)
        return np.where(bad_frames < 0, -1, self.frames[slots] + bad_frames)

    def feed(self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, counts: np.ndarray) -> np.ndarray:
        """Decode frames of some slots.

        Args:
            slots: int64 `[N]`, the slots' numbers; None for all slots.
            logits: `[N, T, C]`.
            lengths, counts: int32 `[N]`, number of frames of each slot, on the device and on the CPU.

        Returns:
            int32 `[N]`, each slot's first frame with NaN or infinity, or -1 if it has none. Slots with such a frame are
            unchanged.
        """
        self.classes = logits.shape[2]
        measure = self.decoder.options.confidence
        confidences = None if measure is None else self.confidences(logits, lengths, measure)
        bad_frames = self.search(slots, logits, lengths, counts, confidences)
        rows = slice(None) if slots is None else slots
        self.frames[rows] += np.where(bad_frames < 0, counts, 0)
        return bad_frames

    def confidences(self, logits: Tensor, lengths: Tensor, measure: str) -> Tensor:
        """Return the confidence of each frame, float32 `[N, T]`; padding has arbitrary values."""
        # Without padding; and on a GPU, where computing it for padding costs less than separating the rows.
        if logits.device.type != "cpu" or (len(lengths) and int(lengths.min()) == logits.shape[1]):
            return frame_confidence(logits, measure)
        confidences = torch.zeros(logits.shape[:2])
        inside = torch.arange(logits.shape[1]) < lengths[:, None]
        confidences[inside] = frame_confidence(packed_frames(logits, lengths)[1][None], measure)[0]
        return confidences

    @abstractmethod
    def search(
        self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, counts: np.ndarray, confidences: Tensor | None
    ) -> np.ndarray:
        """Run the search for `feed`, without counting frames. `confidences` is float32 `[N, T]`, or None."""

    def finish(self, slot: int) -> list[Hypothesis]:
        return [hypothesis for hypothesis in super().finish(slot) if hypothesis.score > -np.inf]


class Prepared:
    """Models and options in the form that the core reads. Batches with the same models and options share the object."""

    def __init__(self, decoder: Any, models: RowModels) -> None:
        self._decoder, self._models = decoder, models
        self._automaton = None if models.lazy else nullcontext(Automaton.of(models.tensors, models.vocab_size))
        self.ends = [CtcModels.of(models, end) for end in (GOES_ON, PHRASES, SENTENCE)]
        self.stay_costs = STAY_COST * models.lm_weights
        self._rules: dict[int, native_beam.BeamRules] = {}  # by number of classes, of which hashes of texts have one each

    def automaton(self) -> AbstractContextManager[Automaton]:
        """Lend the automata to calls of the core."""
        return self._automaton or self._models.automaton()

    def rules(self, classes: int) -> native_beam.BeamRules:
        """Return the rules of beam search over logits of C = `classes`. The first call makes the rules; later calls reuse
        them.
        """
        if classes not in self._rules:
            models, options = self._models, self._decoder.options
            self._rules[classes] = native_beam.BeamRules.of(
                models.weights, self._decoder.token_bonuses(models), unscored(models), options.num_beams,
                options.beam_threshold, options.blank_threshold, self._decoder.text_hashes(classes, models.states.device),
            )  # fmt: skip
        return self._rules[classes]


class CoreSlots(CTCSlots):
    """Slots on the CPU. The states of all searches are one structured array, which the native core reads and writes.

    Attributes:
        rows: `[S]`; its fields are the state of a slot's search.
        prepared: the models and options for the core. It is made on demand; each change of the models sets it to None.
    """

    rows: np.ndarray
    _prepared: Prepared | None = None
    _batch: CtcRows | None = None
    _first: np.ndarray | None = None  # all rows as they begin

    @property
    def block_frames(self) -> int:  # type: ignore[override]
        """Return the number of frames to search in one call. Each tail needs room for a token per frame, so memory limits
        it.
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
        return self.decoder.options.confidence == "max_prob"

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

    def add_fused(self, slots: np.ndarray, more: np.ndarray) -> None:
        """Add phrase scores, `[N, K]`, to the hypotheses of some slots."""

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
        """Search frames like `search`. The states of slots with a broken frame are undefined afterwards."""

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
                automaton, Frames.of(logits, lengths, self.decoder.blank_id), self.models.weights, prepared.stay_costs,
                self.decoder.options.repeats, self.batch(slots), self.rows["lm_states"][:, 0], (rows, width), confidences,
                self.are_max_probs, self.history.with_room(slots, width), None,
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

    def search_core(
        self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, confidences: np.ndarray | None
    ) -> np.ndarray:
        frames, (rows, width, classes) = Frames.of(logits, lengths, self.decoder.blank_id), logits.shape
        rules, tails = self.prepared.rules(classes), self.history.with_room(slots, width)
        with self.prepared.automaton() as automaton:
            return native_beam.search(
                automaton, frames, rules, self.batch(slots), (rows, width), confidences, self.are_max_probs, tails, None
            )

    def live(self) -> np.ndarray:
        return native_beam.is_there(self.rows)

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


class TensorSlots(CTCSlots, Generic[State]):
    """Slots whose state is a tuple of tensors, `[S, ...]` each. GPU search, the reference, and graph search use them.

    Every kind of state has `lm_states` and `lm_scores`, `[S, K, M]`.
    """

    state: State
    block_frames: int | None = BLOCK_FRAMES

    def __init__(self, decoder: Any, models: RowModels, num_beams: int) -> None:
        super().__init__(decoder, models, num_beams)
        self.num_beams = num_beams
        self.engine = decoder.options.engine
        self.state = self.initial(models.states)
        self.told: dict[str, np.ndarray] | None = None  # copy of `reported` on the host, if it is up to date

    @abstractmethod
    def initial(self, states: Tensor) -> State:
        """Return the state before the first frame. `states`, int32 `[N, M]`, are the states of the automata."""

    @abstractmethod
    def search_frames(
        self, rows: Tensor | slice, models: RowModels, state: State, logits: Tensor, lengths: Tensor
    ) -> tuple[State, Any]:
        """Search more frames of some slots. Return the state and the trace: `labels`, `bad_frames`, and for a beam also
        `links`.
        """

    def widen(self, models: RowModels, shift: int) -> None:
        super().widen(models, shift)
        states, scores = widened(self.state.lm_states, shift), widened(self.state.lm_scores)
        self.state, self.told = self.state._replace(lm_states=states, lm_scores=scores), None

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        state, rows = self.state, torch.from_numpy(slots).to(self.state.lm_states.device)
        back = given_back(self.models, rows, state.lm_states[rows], self.engine)
        state.lm_scores[rows, :, -1] += back
        self.add_fused(rows, self.models.weights[rows, -1:] * back)
        state.lm_states[rows, :, -1] = contexts.states.to(state.lm_states.device)
        self.told = None
        super().switch(slots, contexts)

    def add_fused(self, rows: Tensor, more: Tensor) -> None:
        """Add phrase scores, `[N, K]`, to the hypotheses of some slots."""

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.told = None
        for part, new in zip(self.state, self.initial(self.models.states[slot : slot + 1])):
            part[slot] = new[0]

    def search(
        self, slots: np.ndarray | None, logits: Tensor, lengths: Tensor, counts: np.ndarray, confidences: Tensor | None
    ) -> np.ndarray:
        rows = slice(None) if slots is None else torch.from_numpy(slots).to(logits.device)
        models, before, last = self.models if slots is None else self.models.of(rows), self.state, self.labels_before()
        state, happened = self.search_frames(rows, models, type(before)(*(part[rows] for part in before)), logits, lengths)
        self.state = _with(before, rows, state)
        # One copy brings all that the host will ask for, so that it waits for the device once.
        told: dict[str, Tensor] = self.reported()
        links = getattr(happened, "links", happened.labels)
        measured: list[Tensor] = [] if confidences is None else [confidences]
        bad_frames, labels, links, *rest = on_host([happened.bad_frames, happened.labels, links, *told.values(), *measured])
        self.told, heard = dict(zip(told, rest)), rest[-1] if measured else None
        slots = np.arange(len(logits)) if slots is None else slots
        good = np.flatnonzero(bad_frames < 0)
        if len(good) < len(slots):  # slots with a broken frame keep their old state
            of_good, self.told = torch.from_numpy(good).to(logits.device), None
            rows = torch.from_numpy(slots[good]).to(logits.device)
            self.state = _with(before, rows, type(state)(*(part[of_good] for part in state)))
        heard = None if heard is None else heard[good]
        self.follow(slots[good], last, links[good], labels[good], counts[good], heard)
        return bad_frames

    def heard(self, name: str) -> np.ndarray:
        """Return a tensor from `reported` as a read-only array on the CPU."""
        if self.told is None:
            told: dict[str, Tensor] = self.reported()
            self.told = dict(zip(told, on_host([*told.values()])))
        return self.told[name]

    @abstractmethod
    def reported(self) -> dict[str, Tensor]:
        """Return the tensors that the host reads, by name, `[S, ...]` each. "scores" is -inf for a place without hypothesis."""

    def labels_before(self) -> np.ndarray | None:
        """Return the label of the previous frame, int32 `[S]`, for `follow`; None if `follow` doesn't need it."""
        return None

    def follow(
        self, slots: np.ndarray, last: np.ndarray | None, links: np.ndarray, labels: np.ndarray, lengths: np.ndarray,
        confidences: np.ndarray | None,
    ) -> None:  # fmt: skip
        """Append the tokens of a trace to the histories of some slots."""
        self.history.follow_frames(slots, links, labels, lengths, self.frames, self.sums, confidences, self.live())

    def live(self) -> np.ndarray:
        return self.heard("scores") > -np.inf


def _with(state: Any, rows: Tensor | slice, new: Any) -> Any:
    """Return a copy of a state in which `new` replaces some rows. If `rows` is a slice, `new` replaces all rows."""
    if isinstance(rows, slice):
        return new
    parts = [part.clone() for part in state]
    for part, value in zip(parts, new):
        part[rows] = value
    return type(state)(*parts)


class GreedyState(NamedTuple):
    """State of greedy search in `S` rows; see `hf_ngpulm.search.ctc_greedy`. Sums are float64."""

    lm_states: Tensor
    lm_scores: Tensor
    acoustic_scores: Tensor
    before: Tensor


class GreedySlots(TensorSlots[GreedyState]):
    """Greedy search on a GPU, and in the reference."""

    block_frames = None

    def __init__(self, decoder: Any, models: RowModels) -> None:
        super().__init__(decoder, models, 1)

    def initial(self, states: Tensor) -> GreedyState:
        sums = torch.zeros((len(states), 1 + states.shape[1]), dtype=torch.float64, device=states.device)
        before = torch.full((len(states), 2), self.decoder.blank_id, dtype=torch.int32, device=states.device)
        return GreedyState(states[:, None].clone(), sums[:, None, 1:].clone(), sums[:, 0].clone(), before)

    def search_frames(
        self, rows: Tensor | slice, models: RowModels, state: GreedyState, logits: Tensor, lengths: Tensor
    ) -> tuple[GreedyState, greedy.GreedyLabels]:
        result = label_frames(self.decoder, models, state.lm_states[:, 0], state.before, logits, lengths)
        lm_scores = state.lm_scores + result.lm_scores[:, None]
        acoustic_scores = state.acoustic_scores + result.acoustic_scores
        return GreedyState(result.states[:, None], lm_scores, acoustic_scores, result.before), result

    def reported(self) -> dict[str, Tensor]:
        return {"scores": self.scores()[:, None], "last": self.state.before[:, 0]}

    def labels_before(self) -> np.ndarray | None:
        return self.heard("last").copy()

    def follow(
        self, slots: np.ndarray, last: np.ndarray | None, links: np.ndarray, labels: np.ndarray, lengths: np.ndarray,
        confidences: np.ndarray | None,
    ) -> None:  # fmt: skip
        assert last is not None
        blank = self.decoder.blank_id
        self.history.label(slots, labels, lengths, self.frames, last, self.sums, confidences, blank)

    def live(self) -> np.ndarray:
        return np.ones((len(self.frames), 1), dtype=np.bool_)

    def still_open(self, slots: np.ndarray) -> np.ndarray:
        return self.heard("last")[slots] != self.decoder.blank_id

    def scores(self) -> Tensor:
        return self.state.acoustic_scores + (self.models.weights * self.state.lm_scores[:, 0]).sum(1)

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(slots), dtype=np.int64), self.heard("scores")[slots, 0]

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        state = GreedyState(*(part[rows] for part in self.state))
        sums = (self.scores()[rows, None], state.lm_scores, state.lm_states)
        scores, of_lms, of_phrases = self.models.of(rows).at_end(*sums, False, self.decoder.options.engine)
        columns = torch.stack([scores[:, 0], state.acoustic_scores, of_lms[:, 0], of_phrases[:, 0]], 1)
        return [[Found(0, values)] for values in columns.tolist()]


class BeamSlots(TensorSlots[beam.BeamState]):
    """Beam search on a GPU, and in the reference."""

    def __init__(self, decoder: Any, models: RowModels) -> None:
        super().__init__(decoder, models, decoder.options.num_beams)

    def initial(self, states: Tensor) -> beam.BeamState:
        return beam.initial_state(self.num_beams, states)

    def search_frames(
        self, rows: Tensor | slice, models: RowModels, state: beam.BeamState, logits: Tensor, lengths: Tensor
    ) -> tuple[beam.BeamState, beam.BeamFrames]:
        return search_frames(self.decoder, models, state, logits, lengths)

    def add_fused(self, rows: Tensor, more: Tensor) -> None:
        self.state.fused[rows] += more

    def _ended(self, state: beam.BeamState) -> beam.BeamState:
        return with_joined_texts(state) if self.decoder.options.merge == "text" else state

    def reported(self) -> dict[str, Tensor]:
        state = self._ended(self.state)
        scores = prefix_scores(state)[1]
        return {
            "scores": scores,
            "last_tokens": state.last_tokens,
            "parent_hashes": state.parent_hashes,
            "live": self._is_there(),
        }

    def _is_there(self) -> Tensor:
        return torch.maximum(self.state.blank_scores, self.state.token_scores) > -torch.inf

    def live(self) -> np.ndarray:
        return self.heard("live")

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores, last_tokens, hashes = (self.heard(name)[slots] for name in ("scores", "last_tokens", "parent_hashes"))
        places = np.lexsort((hashes, last_tokens, -scores))[:, 0]  # ties go to the order of `in_order`
        return places, scores[np.arange(len(slots)), places]

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        options = self.decoder.options
        state = self._ended(beam.BeamState(*(part[rows] for part in self.state)))
        places, scores = rank(self.models.of(rows), state, most, score_eos, options.engine)
        return [[Found(*both) for both in zip(*row) if both[1][0] > -np.inf] for row in zip(places.tolist(), scores.tolist())]


def ctc_slots(decoder: Any, models: RowModels) -> CTCSlots:
    """Return the slots for a decoder's options and device."""
    is_greedy, is_core = decoder.options.num_beams == 1, engine_name(decoder.options.engine, models.states.device) == "cpu"
    if is_greedy:
        return (CoreGreedySlots if is_core else GreedySlots)(decoder, models)
    return (CoreBeamSlots if is_core else BeamSlots)(decoder, models)


def label_frames(
    decoder: Any, models: RowModels, states: Tensor, before: Tensor, logits: Tensor, lengths: Tensor
) -> greedy.GreedyLabels:
    """Return the class that greedy search assigns to each frame, blanks and repeats included.

    Args:
        states: int32 `[B, M]`, states of the rows' automata.
        before: int32 `[B, 2]`, see `hf_ngpulm.search.ctc_greedy`.
    """
    if states.shape[1]:
        arguments = (
            logits, lengths, states, models.weights, STAY_COST * models.lm_weights, before, decoder.blank_id, models.vocab_size,
            decoder.options.repeats, decoder.options.engine,
        )  # fmt: skip

        def trace(result: greedy.GreedyLabels) -> tuple[None, Tensor]:
            goes_on = result.labels == torch.cat([before[:, :1], result.labels[:, :-1]], 1)
            return None, result.labels.masked_fill(goes_on, -1)[..., None]

        return models.settled(
            lambda tensors: greedy.ctc_greedy(list(tensors), *arguments), states[:, None], trace, decoder.blank_id
        )
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    labels = logits.argmax(dim=-1)
    best = log_probs.gather(2, labels[..., None])[..., 0]
    inside = torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
    bad = inside & ~torch.isfinite(best)
    first_bad = torch.where(bad.any(1), bad.int().argmax(1) if logits.shape[1] else 0, -1)
    labels = torch.where(inside, labels, decoder.blank_id).to(torch.int32)
    every = torch.cat([before[:, :1], labels], 1)  # starts with the label of the frame before
    return greedy.GreedyLabels(
        labels=labels,
        acoustic_scores=torch.where(inside, best, 0.0).sum(dim=1),
        lm_scores=models.weights,
        states=states,
        bad_frames=first_bad.to(torch.int32),
        before=every.gather(1, lengths[:, None].long()).repeat(1, 2),
    )


def search_frames(
    decoder: Any, models: RowModels, state: beam.BeamState, logits: Tensor, lengths: Tensor
) -> tuple[beam.BeamState, beam.BeamFrames]:
    """Search more frames with a beam."""
    options = decoder.options
    rest = (
        lengths, models.weights, decoder.token_bonuses(models), unscored(models), decoder.blank_id, models.vocab_size,
        options.beam_threshold, options.blank_threshold, options.engine, decoder.text_hashes(logits.shape[2], logits.device),
    )  # fmt: skip
    return models.settled(
        lambda tensors: beam.ctc_beam(list(tensors), state, logits, *rest), state.lm_states, lambda result: result[1][:2]
    )


def unscored(models: RowModels) -> Tensor:
    """Return the LM score for a class that no LM scores, float32 `[B]`: the score of one of V equally likely tokens.

    If the score were 0, such classes would win merely because they cost nothing.
    """
    return -math.log(max(models.vocab_size, 1)) * models.lm_weights
