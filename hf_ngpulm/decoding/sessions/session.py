"""Define what all searches of many streams offer: streams lie in slots, whose states are rows of tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...fusion.fusion import Lease, RowModels
from ...phrases import Booster
from ...search.history import History
from ..hypotheses import Hypothesis
from ..partials import Transcript


class Found(NamedTuple):
    """A hypothesis of a stream: its place in the beam (-1 for none), and its scores as for `Writing.hypothesis`."""

    place: int
    scores: Sequence[float]


class Switch(NamedTuple):
    """Phrases that the utterances of `N` slots go on with.

    Args:
        starts, roots: int32 `[N]`, their states at the beginning of a transcript, and without context.
        weights: float32 `[N]`.
        is_empty: bool `[N, K]`, the hypotheses without a token, for which the utterance has yet to begin.
    """

    starts: np.ndarray
    roots: np.ndarray
    weights: Tensor
    is_empty: np.ndarray

    @property
    def states(self) -> Tensor:
        """In which hypotheses go on, int32 `[N, K]`."""
        return torch.from_numpy(np.where(self.is_empty, self.starts[:, None], self.roots[:, None]))

    def of(self, which: np.ndarray) -> Switch:
        """Return some of them."""
        return Switch(self.starts[which], self.roots[which], self.weights[torch.from_numpy(which)], self.is_empty[which])


class Slots(ABC):
    """Searches of `S` streams. A slot begins anew with each utterance.

    Args:
        decoder: whose search it is.
        models: what each slot is fused with. Rows may be replaced at any time; an utterance begins with what is there then.
        num_beams: hypotheses of each slot.

    Attributes:
        frames: int64 `[S]`, frames of each slot's utterance so far.
        transcripts: of each slot what all hypotheses begin with; the rest of them is in its `history`.
    """

    goes_on = False  # whether a last token may go on for more frames

    def __init__(self, decoder: Any, models: RowModels, num_beams: int) -> None:
        self.decoder, self.models = decoder, models
        self.history = History(len(models.states), num_beams, self.goes_on)
        self.frames = np.zeros(len(models.states), dtype=np.int64)
        writing = decoder.writing
        self.transcripts = [Transcript(writing) for _ in range(len(models.states))]

    @property
    def has_phrases(self) -> bool:
        """Return whether there is room for phrases."""
        return self.models.states.shape[1] > self.models.num_lms

    def place(self, slot: int, models: RowModels) -> None:
        """Have a slot fused with what one row is fused with."""
        for name in ("states", "weights", "present"):
            getattr(self.models, name)[slot] = getattr(models, name)[0]

    def use(self, tensors: AutomatonTensors) -> None:
        """Go on with automata that lie in other tensors, at the same places."""
        self.models = self.models._replace(tensors=tensors)

    def widen(self, models: RowModels, shift: int) -> None:
        """Have room for phrases, too.

        Args:
            models: as before, with phrases, of which no row has any.
            shift: how much larger the numbers of the language models' states are now.
        """
        self.models = models

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        """Have the utterances of some slots, int64 `[N]`, go on with other phrases.

        Matches in progress are given up; those of the new phrases begin with the next token.
        """
        rows, models = torch.from_numpy(slots), self.models
        models.states[rows, -1] = torch.from_numpy(contexts.starts).to(models.states.device)
        models.weights[rows, -1] = contexts.weights.to(models.weights.device)
        models.present[rows, -1] = True

    def begin(self, slot: int) -> None:
        """Begin an utterance."""
        self.frames[slot] = 0
        self.history.begin(slot)
        self.transcripts[slot] = Transcript(self.decoder.writing)

    def begin_all(self) -> None:
        """Begin an utterance in every slot."""
        for slot in range(len(self.frames)):
            self.begin(slot)

    def put_aside(self, slots: np.ndarray) -> None:
        """Move what all hypotheses of some slots begin with from their history to their transcripts."""
        counts, spoken = self.history.hand_over(slots, self.live())
        columns = [column.tolist() for column in spoken]
        first = 0
        for slot, count in zip(slots.tolist(), counts.tolist()):
            if count:
                self.transcripts[slot].extend(*(column[first : first + count] for column in columns))
                first += count

    def is_empty(self, slots: np.ndarray) -> np.ndarray:
        """Return which hypotheses of some slots have no token, bool `[N, K]`."""
        handed = np.array([bool(self.transcripts[slot].ids) for slot in slots.tolist()])
        return (self.history.sizes[slots] == 0) & ~handed[:, None]

    def written(self, slots: np.ndarray, ranked: list[list[Found]]) -> list[list[Hypothesis]]:
        """Return the hypotheses that were found in each of some slots."""
        rows = slots.repeat([len(found) for found in ranked])
        places = np.array([hypothesis.place for found in ranked for hypothesis in found], dtype=np.int64)
        sizes, tails = self.history.tails_of(rows, places.clip(min=0))
        sizes[places < 0] = 0
        ends = np.minimum(tails.ends, self.frames[rows][:, None])
        columns = [column.tolist() for column in (tails.ids, tails.starts, ends, tails.confidences)]
        tails_of = ([row[:size] for row in of_row] for size, *of_row in zip(sizes.tolist(), *columns))
        nothing = Transcript(self.decoder.writing)
        return [
            [
                (self.transcripts[slot] if place >= 0 else nothing).followed_by(next(tails_of), int(self.frames[slot]), scores)
                for place, scores in of_slot
            ]
            for slot, of_slot in zip(slots.tolist(), ranked)
        ]

    @abstractmethod
    def refusal(self, chunk: Tensor) -> str | None:
        """Return what is wrong with a chunk by its shape and type; None if nothing is."""

    @abstractmethod
    def step(self, slots: np.ndarray, chunks: Sequence[Tensor]) -> np.ndarray:
        """Decode a chunk `[T, ...]` of each of some slots, int64 `[N]`, no two of them the same.

        Returns:
            int64 `[N]`, for each the first frame (of the utterance) whose outputs were broken, else -1. Slots with one are as
            they were, or `is_broken`.
        """

    @abstractmethod
    def live(self) -> np.ndarray:
        """Return which places of the beams hold a hypothesis, bool `[S, K]`."""

    @abstractmethod
    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the place of the best hypothesis of each of some slots, and its score, as long as more frames may come."""

    @abstractmethod
    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        """Return the best hypotheses of some slots as if their utterances ended here, the best one first.

        Args:
            score_eos: whether `</s>` counts.
            most: how many of each slot, at most; they differ in their tokens.
        """

    def finish(self, slot: int) -> list[Hypothesis]:
        """End the utterance of a slot; its hypotheses, the best one first."""
        options = self.decoder.options
        ranked = self.ranked(slice(slot, slot + 1), options.score_eos, options.num_return_sequences)
        return self.written(np.array([slot]), ranked)[0]

    def still_open(self, slots: np.ndarray) -> np.ndarray:
        """Return whether the last token of a slot's only hypothesis may go on, bool `[N]`."""
        return np.zeros(len(slots), dtype=np.bool_)

    def is_broken(self, slot: int) -> bool:
        """Return whether the slot's utterance can't go on, since the model's outputs were broken."""
        return False


class Follower:
    """The phrases that slots have switched to: they stay in the pools of the decoder's fusion as long as they are followed."""

    def __init__(self, slots: Slots) -> None:
        self.fusion, self.slots = slots.decoder.fusion, slots
        self.device = slots.models.states.device
        self._leases: dict[int, Lease] = {}  # by slot

    def widen(self) -> None:
        """Have room for phrases."""
        if not self.slots.has_phrases:
            models, shift = self.fusion.in_pool(self.slots.models, self.device)
            self.slots.widen(models.widened(), shift)

    def follow(self, slots: np.ndarray, followed: Sequence[tuple[Booster | None, float]]) -> None:
        """Have slots, int64 `[N]`, go on with other phrases (None for none) and their weights."""
        boosters, weights = zip(*followed)
        if not self.slots.has_phrases and all(booster is None for booster in boosters):
            return
        self.widen()
        contexts: list[Any] = [[] if booster is None else booster for booster in boosters]
        places, leases, tensors = self.fusion.places(contexts, self.device)
        if tensors is not self.slots.models.tensors:
            self.slots.use(tensors)
        starts, roots = np.array([(place.start, place.root) for place in places], dtype=np.int32).T
        self.slots.switch(slots, Switch(starts, roots, torch.tensor(weights), self.slots.is_empty(slots)))
        self._leases.update(zip(slots.tolist(), leases))

    def release(self, slot: int) -> None:
        """Let go of what a slot follows."""
        self._leases.pop(slot, None)


def given_back(models: RowModels, rows: Tensor, lm_states: Tensor, engine: str) -> Tensor:
    """Return what the phrases in progress of some rows, int64 `[N]`, give back, unweighted: float32 `[N, K]`.

    Args:
        lm_states: of their hypotheses, `[N, K, M]`.
    """
    states = lm_states[..., -1].to(models.states.device, copy=True).flatten()
    ends = torch.full_like(states, models.vocab_size)
    scores, _ = torch.ops.hf_ngpulm.step(list(models.tensors), states, ends, models.vocab_size + 1, engine)
    return scores.view(lm_states.shape[:2]).masked_fill_(~models.present[rows, -1:], 0.0)


def broken_frames(frames: Tensor, lengths: np.ndarray) -> np.ndarray:
    """Return the first frame with NaN or infinity of each of some rows that lie one after the other `[N, D]`; -1 for none."""
    found = np.full(len(lengths), -1, dtype=np.int64)
    if math.isfinite(float(frames.sum(dtype=torch.float64))):  # no sum of single precision's numbers is too large for double
        return found
    is_broken = ~torch.isfinite(frames).all(1)
    for row, part in enumerate(is_broken.cpu().split(lengths.tolist())):
        if bool(part.any()):
            found[row] = int(part.int().argmax())
    return found
