"""Streams of CTC models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...fusion.fusion import RowModels, widened
from ...search import ctc_beam as beam
from ...search.confidence import frame_confidence
from ...search.ctc_beam.ranking import prefix_scores, rank, with_joined_texts
from ..ctc import CTCDecoder
from .ctc_blocks import label_frames, search_frames, unscored
from .history import History
from .session import Found, Slots, Switch, given_back

if TYPE_CHECKING:
    from ...search.ctc_graph import GraphState
    from ..graph import GraphDecoder

State = TypeVar("State", beam.BeamState, "GraphState")


class CTCSlots(Slots):
    """What greedy search and beams have in common."""

    def __init__(self, decoder: CTCDecoder | GraphDecoder, models: RowModels, num_beams: int) -> None:
        super().__init__(models, History(len(models.states), num_beams, goes_on=True))
        self.decoder = decoder
        self.classes: int | None = None
        # Of the confidences of all frames of a slot's utterance.
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
        self.classes = chunks[0].shape[1]
        lengths = np.array([len(chunk) for chunk in chunks], dtype=np.int32)
        logits = torch.nn.utils.rnn.pad_sequence([chunk.detach() for chunk in chunks], batch_first=True)
        # All slots in their order are taken as they are, without copies.
        everything = np.array_equal(slots, np.arange(len(self.frames)))
        rows = slice(None) if everything else torch.from_numpy(slots).to(logits.device)
        models = self.models if everything else self.models.of(rows)
        confidences = np.zeros(logits.shape[:2], dtype=np.float32)
        if self.decoder.confidence is not None:
            confidences = frame_confidence(logits, self.decoder.confidence).cpu().numpy()
        bad_frames = self.search(slots, rows, models, logits, torch.from_numpy(lengths).to(logits.device), confidences)
        self.frames[slots] += np.where(bad_frames < 0, lengths, 0)
        return np.where(bad_frames < 0, -1, self.frames[slots] + bad_frames)

    @abstractmethod
    def search(
        self,
        slots: np.ndarray,
        rows: Tensor | slice,
        models: RowModels,
        logits: Tensor,
        lengths: Tensor,
        confidences: np.ndarray,
    ) -> np.ndarray:
        """Decode chunks `[N, T, C]`; returns the first bad frame of each, else -1. Slots with one stay as they were."""


class GreedySlots(CTCSlots):
    decoder: CTCDecoder

    def __init__(self, decoder: CTCDecoder, models: RowModels) -> None:
        super().__init__(decoder, models, 1)
        slots, device = len(models.states), models.states.device
        self.states = models.states.clone()
        self.before = torch.full((slots, 2), decoder.blank_id, dtype=torch.int32, device=device)
        self.acoustic_scores = torch.zeros(slots, dtype=torch.float64, device=device)
        self.lm_scores = torch.zeros(models.states.shape, dtype=torch.float64, device=device)
        self.last = np.full(slots, decoder.blank_id, dtype=np.int64)

    def widen(self, models: RowModels, shift: int) -> None:
        super().widen(models, shift)
        self.states, self.lm_scores = widened(self.states, shift), widened(self.lm_scores)

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        rows = torch.from_numpy(slots).to(self.states.device)
        self.lm_scores[rows, -1] += given_back(self.models, rows, self.states[rows, None], self.decoder.engine)[:, 0]
        self.states[rows, -1] = contexts.states[:, 0].to(self.states.device)
        super().switch(slots, contexts)

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.states[slot] = self.models.states[slot]
        self.before[slot] = self.last[slot] = self.decoder.blank_id
        self.acoustic_scores[slot] = 0.0
        self.lm_scores[slot] = 0.0

    def search(
        self,
        slots: np.ndarray,
        rows: Tensor | slice,
        models: RowModels,
        logits: Tensor,
        lengths: Tensor,
        confidences: np.ndarray,
    ) -> np.ndarray:
        result = label_frames(self.decoder, models, self.states[rows], self.before[rows], logits, lengths)
        bad_frames = result.bad_frames.cpu().numpy()
        good = bad_frames < 0
        labels = result.labels.cpu().numpy()
        if not good.all():
            slots, labels, confidences = slots[good], labels[good], confidences[good]
            which = torch.from_numpy(np.flatnonzero(good)).to(logits.device)
            result = type(result)(*(part[which] for part in result))
            rows, lengths = torch.from_numpy(slots).to(logits.device), lengths[which]
        self.states[rows], self.before[rows] = result.states, result.before
        self.acoustic_scores[rows] += result.acoustic_scores
        self.lm_scores[rows] += result.lm_scores
        self.history.label(
            slots, labels, lengths.cpu().numpy(), self.frames, self.last, self.sums, confidences, self.decoder.blank_id
        )
        return bad_frames

    def live(self) -> np.ndarray:
        return np.ones((len(self.frames), 1), dtype=np.bool_)

    def goes_on(self, slots: np.ndarray) -> np.ndarray:
        return self.last[slots] != self.decoder.blank_id

    def scores(self) -> Tensor:
        return self.acoustic_scores + (self.models.weights * self.lm_scores).sum(1)

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(slots), dtype=np.int64), self.scores().cpu().numpy()[slots]

    def finish(self, slot: int) -> list[Found]:
        row = slice(slot, slot + 1)
        ended = self.models.of(row).at_end(
            self.scores()[row, None], self.lm_scores[row, None], self.states[row, None], False, self.decoder.engine
        )
        score, lm_score, phrase_score = (float(values) for values in ended)
        return [Found(0, score, float(self.acoustic_scores[slot]), lm_score, phrase_score)]


class FramesSlots(CTCSlots, Generic[State]):
    """What searches have in common that keep several hypotheses for each slot, as rows `[S, K]` of tensors."""

    state: State

    def __init__(self, decoder: CTCDecoder | GraphDecoder, models: RowModels, num_beams: int) -> None:
        super().__init__(decoder, models, num_beams)
        self.num_beams = num_beams
        self.state = self.initial(models.states)

    @abstractmethod
    def initial(self, states: Tensor) -> State:
        """Before the first frame, with automata in the states `[N, M]`."""

    @abstractmethod
    def search_frames(
        self, rows: Tensor | slice, models: RowModels, state: State, logits: Tensor, lengths: Tensor
    ) -> tuple[State, Any]:
        """Go on with the search of some slots; what happened has `links`, `labels` and `bad_frames`."""

    def widen(self, models: RowModels, shift: int) -> None:
        super().widen(models, shift)
        states, scores = widened(self.state.lm_states, shift), widened(self.state.lm_scores)
        self.state = self.state._replace(lm_states=states, lm_scores=scores)

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        state, rows = self.state, torch.from_numpy(slots).to(self.state.fused.device)
        back = given_back(self.models, rows, state.lm_states[rows], self.decoder.engine)
        state.lm_scores[rows, :, -1] += back
        self.add_fused(rows, self.models.weights[rows, -1:] * back)
        state.lm_states[rows, :, -1] = contexts.states.to(state.lm_states.device)
        super().switch(slots, contexts)

    def add_fused(self, rows: Tensor, more: Tensor) -> None:
        """Have the hypotheses of some slots score more for phrases, `[N, K]`."""
        self.state.fused[rows] += more

    def begin(self, slot: int) -> None:
        super().begin(slot)
        for part, new in zip(self.state, self.initial(self.models.states[slot : slot + 1])):
            part[slot] = new[0]

    def search(
        self,
        slots: np.ndarray,
        rows: Tensor | slice,
        models: RowModels,
        logits: Tensor,
        lengths: Tensor,
        confidences: np.ndarray,
    ) -> np.ndarray:
        kind = type(self.state)
        state, frames = self.search_frames(rows, models, kind(*(part[rows] for part in self.state)), logits, lengths)
        bad_frames = frames.bad_frames.cpu().numpy()
        good = bad_frames < 0
        if not good.all():
            slots, confidences = slots[good], confidences[good]
            which = torch.from_numpy(np.flatnonzero(good)).to(logits.device)
            state, frames = (type(parts)(*(part[which] for part in parts)) for parts in (state, frames))
            rows, lengths = torch.from_numpy(slots).to(logits.device), lengths[which]
        self.follow(slots, rows, state, frames, lengths.cpu().numpy(), confidences)
        return bad_frames

    def follow(
        self, slots: np.ndarray, rows: Tensor | slice, state: State, frames: Any, lengths: np.ndarray, confidences: np.ndarray
    ) -> None:
        """Keep what some slots have come to, and with it what their hypotheses consist of now."""
        if isinstance(rows, slice):
            self.state = state
        else:
            for part, new in zip(self.state, state):
                part[rows] = new
        links, labels = frames.links.cpu().numpy(), frames.labels.cpu().numpy()
        self.history.follow_frames(slots, links, labels, lengths, self.frames, self.sums, confidences, self.live())


class BeamSlots(FramesSlots[beam.BeamState]):
    decoder: CTCDecoder

    def __init__(self, decoder: CTCDecoder, models: RowModels) -> None:
        super().__init__(decoder, models, decoder.num_beams)

    def initial(self, states: Tensor) -> beam.BeamState:
        return beam.initial_state(self.num_beams, states)

    def search_frames(
        self, rows: Tensor | slice, models: RowModels, state: beam.BeamState, logits: Tensor, lengths: Tensor
    ) -> tuple[beam.BeamState, beam.BeamFrames]:
        bonuses = self.decoder.token_bonuses(models.lm_weights)
        return search_frames(self.decoder, models, state, logits, lengths, bonuses, unscored(models))

    def _ended(self, state: beam.BeamState) -> beam.BeamState:
        return with_joined_texts(state) if self.decoder.merge == "text" else state

    def live(self) -> np.ndarray:
        return (torch.maximum(self.state.blank_scores, self.state.token_scores) > -torch.inf).cpu().numpy()

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores = prefix_scores(self._ended(self.state))[1].cpu().numpy()[slots]
        places = scores.argmax(1)
        return places, scores[np.arange(len(slots)), places]

    def finish(self, slot: int) -> list[Found]:
        row = slice(slot, slot + 1)
        state = beam.BeamState(*(part[row] for part in self.state))
        decoder, state = self.decoder, self._ended(state)
        ranked = rank(self.models.of(row), state, decoder.num_return_sequences, decoder.score_eos, decoder.engine)
        found = zip(ranked.places[0].tolist(), ranked.scores[0].tolist())
        return [Found(place, *scores) for place, scores in found if scores[0] > -np.inf]
