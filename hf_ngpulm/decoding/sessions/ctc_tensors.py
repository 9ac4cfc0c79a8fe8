"""Search CTC outputs on a GPU, or with the reference engine. The states of the slots are tensors."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...engines.devices import on_host
from ...fusion.rows import RowModels, widened
from ...search import ctc_beam as beam
from ...search import ctc_greedy as greedy
from ...search.ctc_beam.ranking import prefix_scores, rank, with_joined_texts
from ...search.ctc_graph import GraphState
from .ctc import BLOCK_FRAMES, CTCSlots, beam_rules, label_rules, weighted_scores
from .session import Found, Switch, given_back

State = TypeVar("State", beam.BeamState, GraphState, "GreedyState")


class TensorSlots(CTCSlots, Generic[State]):
    """Slots whose state is a tuple of tensors, `[S, ...]` each. GPU search, the reference and graph search use this class.

    Every kind of state has `lm_states` and `lm_scores`, `[S, K, M]`, for K hypotheses and M automata. A search also returns a
    trace: for each frame the labels of the hypotheses and, in a beam, the links to their parents.
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
        """Return the search state before the first frame. `states`, int32 `[N, M]`: each slot's first states in M automata."""

    @abstractmethod
    def search_frames(
        self, rows: Tensor | slice, models: RowModels, state: State, logits: Tensor, lengths: Tensor
    ) -> tuple[State, Any]:
        """Search more frames of some slots. Return the state and the trace: `labels`, `bad_frames`, and for beams `links`."""

    def widen(self, models: RowModels, shift: int) -> None:
        super().widen(models, shift)
        states, scores = widened(self.state.lm_states, shift), widened(self.state.lm_scores)
        self.state, self.told = self.state._replace(lm_states=states, lm_scores=scores), None

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        state, rows = self.state, torch.from_numpy(slots).to(self.state.lm_states.device)
        back = given_back(self.models, rows, state.lm_states[rows], self.engine)
        state.lm_scores[rows, :, -1] += back
        self.add_fused(slots, (self.models.weights[rows, -1:] * back).cpu().numpy())
        state.lm_states[rows, :, -1] = contexts.states.to(state.lm_states.device)
        self.told = None
        super().switch(slots, contexts)

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
        """Return the tensors that the host reads, by name, `[S, ...]` each. "scores" is -inf where there is no hypothesis."""

    def labels_before(self) -> np.ndarray | None:
        """Return the label of the previous frame, int32 `[S]`, for `follow`; None if `follow` needs no label."""
        return None

    def follow(
        self, slots: np.ndarray, last: np.ndarray | None, links: np.ndarray, labels: np.ndarray, lengths: np.ndarray,
        confidences: np.ndarray | None,
    ) -> None:  # fmt: skip
        """Append the tokens of a trace to the histories of some slots.

        Args:
            last: the result of `labels_before`.
            links, labels: the trace.
            lengths: number of frames of each slot.
            confidences: the confidence of each frame, `[N, T]`; None without a measure.
        """
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
        rules, engine = beam_rules(self.decoder, models, logits.shape[2]), self.engine
        return models.settled(
            lambda tensors: beam.ctc_beam(list(tensors), state, logits, lengths, rules, engine),
            state.lm_states, lambda result: result[1][:2],
        )  # fmt: skip

    def add_fused(self, slots: np.ndarray, more: np.ndarray) -> None:
        of_slots, device = torch.from_numpy(slots), self.state.fused.device
        self.state.fused[of_slots.to(device)] += torch.from_numpy(more).to(device)
        self.told = None

    def not_acoustic(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = torch.from_numpy(slots).to(self.state.fused.device)
        fused, lm_scores, sizes = on_host([part[rows] for part in (self.state.fused, self.state.lm_scores, self.state.sizes)])
        return fused.astype(np.float64), weighted_scores(self, slots, lm_scores, sizes)

    def _ended(self, state: beam.BeamState) -> beam.BeamState:
        return with_joined_texts(state) if self.decoder.options.merge == "text" else state

    def reported(self) -> dict[str, Tensor]:
        state = self._ended(self.state)
        scores = prefix_scores(state)[1]
        return {
            "scores": scores,
            "last_tokens": state.last_tokens,
            "parent_hashes": state.parent_hashes,
            "live": torch.maximum(self.state.blank_scores, self.state.token_scores) > -torch.inf,
        }

    def live(self) -> np.ndarray:
        return self.heard("live")

    def standing(self, slots: np.ndarray) -> np.ndarray:
        return self.heard("scores")[slots]

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores, last_tokens, hashes = (self.heard(name)[slots] for name in ("scores", "last_tokens", "parent_hashes"))
        places = np.lexsort((hashes, last_tokens, -scores))[:, 0]  # ties go to the order of `in_order`
        return places, scores[np.arange(len(slots)), places]

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        options = self.decoder.options
        state = self._ended(beam.BeamState(*(part[rows] for part in self.state)))
        places, scores = rank(self.models.of(rows), state, most, score_eos, options.engine)
        return [[Found(*both) for both in zip(*row) if both[1][0] > -np.inf] for row in zip(places.tolist(), scores.tolist())]


def label_frames(
    decoder: Any, models: RowModels, states: Tensor, before: Tensor, logits: Tensor, lengths: Tensor
) -> greedy.GreedyLabels:
    """Return the class that greedy search assigns to each frame, blanks and repeats included. `states`: int32 `[B, M]`, states
    of the rows' automata. `before`: int32 `[B, 2]`, see `hf_ngpulm.search.ctc_greedy`.
    """
    if states.shape[1]:
        rows, engine = (logits, lengths, states, before, label_rules(decoder, models)), decoder.options.engine

        def trace(result: greedy.GreedyLabels) -> tuple[None, Tensor]:
            goes_on = result.labels == torch.cat([before[:, :1], result.labels[:, :-1]], 1)
            return None, result.labels.masked_fill(goes_on, -1)[..., None]

        return models.settled(
            lambda tensors: greedy.ctc_greedy(list(tensors), *rows, engine), states[:, None], trace, decoder.blank_id
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
