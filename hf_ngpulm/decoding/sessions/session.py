"""Define `Slots`, the interface of searches over many streams. Each stream has a slot, a row of the arrays or tensors.

A place is the index of a hypothesis in the beam of its slot.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...fusion.rows import Lease, RowModels
from ...phrases import Booster
from ...search.history import History
from ..hypotheses import Hypothesis
from ..partials import Transcript
from .delayed import DelayedFusion


class Found(NamedTuple):
    """Hold a ranked hypothesis: its index in the beam (-1 for the empty transcript), and scores as for `Writing.hypothesis`."""

    place: int
    scores: Sequence[float]


class Switch(NamedTuple):
    """Hold the new phrases of `N` slots."""

    # starts, roots: int32 [N], states of the phrase automata: at the beginning of a transcript, and without context
    starts: np.ndarray
    roots: np.ndarray
    weights: Tensor  # float32 [N]
    # bool [N, K], whether a hypothesis has no token. Such a hypothesis continues in `starts`, the others in `roots`.
    is_empty: np.ndarray

    @property
    def states(self) -> Tensor:
        """Return the states in which hypotheses continue, int32 `[N, K]`."""
        return torch.from_numpy(np.where(self.is_empty, self.starts[:, None], self.roots[:, None]))

    def of(self, which: np.ndarray) -> Switch:
        """Return the new phrases of some of the slots."""
        return Switch(self.starts[which], self.roots[which], self.weights[torch.from_numpy(which)], self.is_empty[which])


class Slots(ABC):
    """Search `S` streams, one per slot. `begin` starts a new utterance in a slot.

    Args:
        decoder: the decoder whose options apply.
        models: models and weights of each slot. A row may be replaced at any time; the new row applies from the next utterance
            on.
        num_beams: number of hypotheses per slot.

    Attributes:
        frames: int64 `[S]`, number of frames of each slot's utterance so far.
        transcripts: per slot, the tokens with which all hypotheses begin; `history` has the rest of each hypothesis.
        delayed: the rescorer that takes part in the search, or None.
    """

    goes_on = False  # whether the next frame may continue the last token (CTC)

    def __init__(self, decoder: Any, models: RowModels, num_beams: int) -> None:
        self.decoder, self.models = decoder, models
        self.history = History(len(models.states), num_beams, self.goes_on)
        self.frames = np.zeros(len(models.states), dtype=np.int64)
        writing = decoder.writing
        self.transcripts = [Transcript(writing) for _ in range(len(models.states))]
        every = getattr(decoder.options, "rescorer_frames", None)
        self.delayed = None if every is None else DelayedFusion(self, every)

    @property
    def has_phrases(self) -> bool:
        """Return whether the models have a column for phrases."""
        return self.models.has_phrases

    def place(self, slot: int, models: RowModels) -> None:
        """Copy the models and weights of the first row of `models` to a slot."""
        for name in ("states", "weights", "present"):
            getattr(self.models, name)[slot] = getattr(models, name)[0]
        if self.models.grammars is not None and models.grammars is not None:
            self.models.grammars[slot] = models.grammars[0]
        if self.models.silent is not None:
            self.models.silent[slot] = False

    def place_lms(self, slot: int, models: RowModels, silent: bool) -> None:
        """Copy the language models and weights of the first row of `models` to a slot. The slot's phrases stay. `silent`:
        whether the settings that balance a language model have no effect in the slot.
        """
        columns, mine = slice(self.models.num_lms), self.models.of(slice(slot, slot + 1))
        for name in ("states", "weights", "present"):
            getattr(mine, name)[0, columns] = getattr(models, name)[0, columns]
        self.place(slot, mine)
        assert self.models.silent is not None
        self.models.silent[slot] = silent

    def use(self, tensors: AutomatonTensors) -> None:
        """Replace the tensors of the automata. The automata have the same states in the new tensors."""
        self.models = self.models._replace(tensors=tensors)

    def widen(self, models: RowModels, shift: int) -> None:
        """Add a column for phrases to the rows.

        Args:
            models: the present models and an empty column of phrases.
            shift: distance by which the language models have moved in the pool of automata; searches add it to the LM states.
        """
        self.models = models

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        """Switch some slots, int64 `[N]`, to other phrases.

        Unfinished matches end; new phrases can match from the next token on.
        """
        rows, models = torch.from_numpy(slots), self.models
        models.states[rows, -1] = torch.from_numpy(contexts.starts).to(models.states.device)
        models.weights[rows, -1] = contexts.weights.to(models.weights.device)
        models.present[rows, -1] = True

    def begin(self, slot: int) -> None:
        """Begin a new utterance in a slot."""
        self.frames[slot] = 0
        self.history.begin(slot)
        self.transcripts[slot] = Transcript(self.decoder.writing)
        if self.delayed is not None:
            self.delayed.begin(slot)

    def begin_all(self) -> None:
        """Begin an utterance in every slot."""
        for slot in range(len(self.frames)):
            self.begin(slot)

    def put_aside(self, slots: np.ndarray) -> None:
        """If a slot's hypotheses all begin with the same tokens, move these tokens from the history to the transcript."""
        counts, spoken = self.history.hand_over(slots, self.live())
        columns = [column.tolist() for column in spoken]
        first = 0
        for slot, count in zip(slots.tolist(), counts.tolist()):
            if count:
                self.transcripts[slot].extend(*(column[first : first + count] for column in columns))
                first += count

    def is_empty(self, slots: np.ndarray) -> np.ndarray:
        """For some slots, return a mask of the hypotheses that have no token, bool `[N, K]`."""
        has_shared = np.array([bool(self.transcripts[slot].ids) for slot in slots.tolist()])
        return (self.history.sizes[slots] == 0) & ~has_shared[:, None]

    def written(self, slots: np.ndarray, ranked: list[list[Found]]) -> list[list[Hypothesis]]:
        """Return the ranked hypotheses of some slots with their tokens and texts."""
        rows = slots.repeat([len(of_slot) for of_slot in ranked])
        places = np.array([hypothesis.place for of_slot in ranked for hypothesis in of_slot], dtype=np.int64)
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
        """Return the end of an error message that begins with "the chunk"; None if the chunk has the right shape and dtype."""

    @abstractmethod
    def step(self, slots: np.ndarray, chunks: Sequence[Tensor]) -> np.ndarray:
        """Decode a chunk `[T, ...]` of each slot in `slots`, int64 `[N]`. A slot may occur only once.

        Returns:
            int64 `[N]`, each slot's first frame (of the utterance) with NaN or infinity, or -1 if all frames are finite. A slot
            with such a frame is unchanged, or is `is_broken` from now on.
        """

    @abstractmethod
    def live(self) -> np.ndarray:
        """Return a mask of the places that have a hypothesis, bool `[S, K]`."""

    @abstractmethod
    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the place and the score (without the utterance's end) of the best hypothesis of some slots, each `[N]`."""

    @abstractmethod
    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        """Return the best hypotheses of some slots, the best one first. The scores include the utterance's end. `score_eos`:
        whether `</s>` counts. `most`: maximum number of hypotheses per slot, which differ in their tokens.
        """

    def searched(self, rows: slice) -> list[list[Hypothesis]]:
        """Return up to `num_searched` hypotheses of some slots as if their utterances ended now, for a rescorer."""
        slots, options = np.arange(len(self.frames))[rows], self.decoder.options
        hypotheses = self.written(slots, self.ended(slots, self.ranked(rows, options.score_eos, options.num_searched)))
        if self.delayed is not None:
            self.delayed.finish(slots, [[each.text for each in of_slot] for of_slot in hypotheses])
        return hypotheses

    def ended(self, slots: np.ndarray, ranked: list[list[Found]]) -> list[list[Found]]:
        """Return the ranked hypotheses of some slots without a rescorer's shares in their scores (see `DelayedFusion`)."""
        return ranked

    def finish(self, slot: int) -> list[Hypothesis]:
        """End the utterance of a slot and return its hypotheses, the best one first."""
        return self.decoder.rescored(self.searched(slice(slot, slot + 1)))[0]

    def still_open(self, slots: np.ndarray) -> np.ndarray:
        """Return whether the next frame may continue the last token of a slot's only hypothesis, bool `[N]`."""
        return np.zeros(len(slots), dtype=np.bool_)

    def is_broken(self, slot: int) -> bool:
        """Return whether a slot's utterance can't continue, because the model's outputs contained NaN or infinity."""
        return False


class Follower:
    """Switch slots to other phrases. Phrases stay in the pools of the decoder's fusion as long as a slot uses the phrases."""

    def __init__(self, slots: Slots) -> None:
        self.fusion, self.slots = slots.decoder.fusion, slots
        self.device = slots.models.states.device
        self._leases: dict[int, Lease] = {}  # by slot

    def widen(self) -> None:
        """Add a column for phrases to the slots, if they have none."""
        if not self.slots.has_phrases:
            models, shift = self.fusion.in_pool(self.slots.models, self.device)
            self.slots.widen(models.widened(), shift)

    def follow(self, slots: np.ndarray, followed: Sequence[tuple[Booster | None, float]]) -> None:
        """Switch slots, int64 `[N]`, to other phrases. `followed` has each slot's phrases (or None) and the phrases' weight."""
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
        """Release the phrases of a slot, so that the pools can drop them."""
        self._leases.pop(slot, None)


def given_back(models: RowModels, rows: Tensor, lm_states: Tensor, engine: str) -> Tensor:
    """Return the unweighted bonuses that unfinished phrases repay, as numbers of at most 0: float32 `[N, K]`. `rows`: int64
    `[N]`, rows of `models`. `lm_states`: `[N, K, M]`, each hypothesis's states in the automata.
    """
    states = lm_states[..., -1].to(models.states.device, copy=True).flatten()
    ends = torch.full_like(states, models.vocab_size)
    scores, _ = torch.ops.hf_ngpulm.step(list(models.tensors), states, ends, models.vocab_size + 1, engine)
    return scores.view(lm_states.shape[:2]).masked_fill_(~models.present[rows, -1:], 0.0)


def broken_frames(frames: Tensor, lengths: np.ndarray) -> np.ndarray:
    """Return each row's first frame with NaN or infinity, or -1 if it has none: int64 `[R]`.

    `frames` `[N, D]` holds the rows' frames, one row after the other; `lengths` has each row's number of frames.
    """
    bad_frames = np.full(len(lengths), -1, dtype=np.int64)
    if math.isfinite(float(frames.sum(dtype=torch.float64))):  # sums of finite float32 numbers can't overflow float64
        return bad_frames
    is_broken = ~torch.isfinite(frames).all(1)
    for row, of_row in enumerate(is_broken.cpu().split(lengths.tolist())):
        if bool(of_row.any()):
            bad_frames[row] = int(of_row.int().argmax())
    return bad_frames
