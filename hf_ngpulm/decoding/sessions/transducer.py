"""Streams of transducers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import CPU
from ...automaton.tensors import AutomatonTensors
from ...engines.choice import engine_name
from ...fusion.fusion import RowModels, settled, widened
from ...lexicon.lazy_search import LazySearch
from ...search.networks.networks import TransducerNetworks
from ...search.transducer_beam import cpu as beam_cpu
from ...search.transducer_beam import tensors as beam_tensors
from ...search.transducer_greedy import WINDOW, looping_of
from ...search.transducer_greedy.cpu import Carried, loop
from ...search.transducer_greedy.rows import Rows, Rules
from ...search.transducer_greedy.tensors import Looping
from ..hypotheses import Hypothesis
from ..transducer import TransducerDecoder
from .session import Found, Slots, Switch, broken_frames, given_back

LEAST_ROOM = 16  # frames


class TransducerSlots(Slots):
    """Share what greedy search and beams have in common: the frames that wait to be decoded.

    Args:
        dtype: of the frames.
    """

    decoder: TransducerDecoder

    def __init__(self, decoder: TransducerDecoder, models: RowModels, dtype: torch.dtype, num_beams: int) -> None:
        slots, device = len(models.states), models.states.device
        super().__init__(decoder, models, num_beams)
        self.model, self.engine = decoder.model, decoder.options.engine
        self.networks = self._served(dtype, device)
        self.width = None if self.networks is None else self.networks.head.shape[1]
        # Frames `[S, room, D]` from the first one on that a hypothesis is at, and their number.
        self.waiting = torch.zeros((slots, LEAST_ROOM, self.width or 0), dtype=dtype, device=device)
        self.held = np.zeros(slots, dtype=np.int64)
        self.broken = np.zeros(slots, dtype=np.bool_)
        self.begun = np.zeros(slots, dtype=np.bool_)

    def _served(self, dtype: torch.dtype, device: torch.device) -> TransducerNetworks | None:
        """Return the model's networks, if the native core runs them."""
        if engine_name(self.engine, device) != "cpu":
            return None
        networks = self.model.networks()
        if networks is None:
            return None
        like = torch.empty((0, networks.head.shape[1]), dtype=dtype, device=device)
        return networks if networks.serve(like, self.model.vocab_size, len(self.model.durations or ())) else None

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.held[slot], self.broken[slot], self.begun[slot] = 0, False, False

    def refusal(self, chunk: Tensor) -> str | None:
        if chunk.dim() != 2 or chunk.dtype != self.waiting.dtype or (self.width or chunk.shape[1]) != chunk.shape[1]:
            of_width = "D" if self.width is None else str(self.width)
            return f"should be encoder frames {self.waiting.dtype} [T, {of_width}], got {chunk.dtype} {tuple(chunk.shape)}"
        return None

    def is_broken(self, slot: int) -> bool:
        return bool(self.broken[slot])

    def step(self, slots: np.ndarray, chunks: Sequence[Tensor]) -> np.ndarray:
        if self.width is None:
            self.width = chunks[0].shape[1]
            self._use(self.waiting.new_zeros((*self.waiting.shape[:2], self.width)))
        lengths = np.array([len(chunk) for chunk in chunks], dtype=np.int64)
        frames = torch.cat(list(chunks))
        bad_frames = broken_frames(frames, lengths)
        taken = np.where(bad_frames < 0, lengths, 0)
        bad_frames = np.where(bad_frames >= 0, bad_frames + self.frames[slots], -1)
        self._wait(slots, frames, lengths, taken)
        self._begin_new(slots)
        first_frames = self.frames - self.held
        self.frames[slots] += taken
        self.held[slots] += taken
        self.run(first_frames)
        broken = self.bad_frames()[slots]
        self.broken[slots] = broken >= 0
        self.held[slots[broken >= 0]] = 0
        return np.where(broken >= 0, broken, bad_frames)

    def finish(self, slot: int) -> list[Hypothesis]:
        self._begin_new(np.array([slot]))
        self.run(self.frames - self.held, ended=slot)
        return super().finish(slot)

    def _wait(self, slots: np.ndarray, frames: Tensor, lengths: np.ndarray, taken: np.ndarray) -> None:
        """Put frames after those that wait already."""
        room = self.waiting.shape[1]
        needed = int((self.held[slots] + taken).max(initial=0))
        if needed > room:
            grown = self.waiting.new_zeros((len(self.waiting), max(needed, 2 * room), self.waiting.shape[2]))
            grown[:, :room] = self.waiting
            self._use(grown)
            room = grown.shape[1]
        if len(slots) == 1 and taken[0]:  # live audio of one: most of a step's time would go into places
            slot, begin = int(slots[0]), int(self.held[slots[0]])
            self.waiting[slot, begin : begin + len(frames)] = frames
            return
        offsets = np.arange(len(frames)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = np.repeat(slots * room + self.held[slots], lengths) + offsets
        if not np.array_equal(taken, lengths):
            kept = np.repeat(taken > 0, lengths)
            frames, places = frames[torch.from_numpy(kept).to(frames.device)], places[kept]
        self.waiting.view(-1, self.waiting.shape[2]).index_copy_(0, torch.from_numpy(places).to(frames.device), frames)

    def _begin_new(self, slots: np.ndarray) -> None:
        new = slots[~self.begun[slots]]
        if len(new):
            self.begun[new] = True
            rows = torch.from_numpy(new).to(self.waiting.device)
            self.begin_rows(rows, self.models.of(rows))

    def leave(self, consumed: np.ndarray) -> None:
        """Drop the first frames that wait, so many of each slot `[S]`; the others move to the front."""
        left = self.held - consumed
        counts = np.where(consumed > 0, left, 0)
        total = int(counts.sum())
        if total:
            room = self.waiting.shape[1]
            offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
            targets = np.repeat(np.arange(len(counts)) * room, counts) + offsets
            sources = targets + np.repeat(consumed, counts)
            frames = self.waiting.view(-1, self.waiting.shape[2])
            to, of = (torch.from_numpy(places).to(frames.device) for places in (targets, sources))
            frames.index_copy_(0, to, frames.index_select(0, of))
        self.held = left

    def _use(self, waiting: Tensor) -> None:
        """Go on with other room for frames."""
        self.waiting = waiting
        self.moved()

    @abstractmethod
    def moved(self) -> None:
        """Take note that `waiting` is another tensor now."""

    @abstractmethod
    def begin_rows(self, rows: Tensor, models: RowModels) -> None:
        """Begin utterances in some rows, int64 `[N]`, with these models."""

    def begun_with(self, models: RowModels) -> tuple[Tensor, Tensor, Tensor]:
        """Return states of automata, their weights and the internal LM's, as searches begin with them."""
        ilm_weights = self.decoder.ilm_weights(models)
        return models.states, models.weights, torch.zeros_like(models.lm_weights) if ilm_weights is None else ilm_weights

    @abstractmethod
    def run(self, first_frames: np.ndarray, ended: int | None = None) -> None:
        """Decode the frames that wait, as far as that can be done.

        Args:
            first_frames: int64 `[S]`, numbers of the first ones in their utterances.
            ended: a slot to which no more frames will come.
        """

    def search_frames(self) -> list[np.ndarray]:
        """Search the frames that wait; the steps that were taken."""
        lazy, states = self.models.lazy, self.lm_states
        if lazy is None:
            return self.search_once()
        # The search changes what it carries in place: each time it begins with what there was.
        carried = self.carries()
        before = [part.copy() if isinstance(part, np.ndarray) else part.clone() for part in carried]
        states = states.clone()

        def search(models: RowModels) -> list[np.ndarray]:
            if models.tensors is not self.models.tensors:
                self.use(models.tensors)
            for part, value in zip(carried, before):
                part[...] = value
            return self.search_once()

        return settled(self.models, search, lambda lazy, steps: self.replay(lazy, steps, states))

    @abstractmethod
    def search_once(self) -> list[np.ndarray]:
        """Go on with what is carried; the steps."""

    @abstractmethod
    def replay(self, lazy: LazySearch, steps: list[np.ndarray], states: Tensor) -> bool:
        """Tell what states such steps have entered from `states`; whether that was new (`LazySearch.replay`)."""

    @abstractmethod
    def carries(self) -> list[Any]:
        """Return the tensors and arrays that a search changes in place."""

    @property
    @abstractmethod
    def lm_states(self) -> Tensor:
        """The states of the automata, int32 `[S, M]` or `[S, K, M]`."""

    @abstractmethod
    def bad_frames(self) -> np.ndarray:
        """Return int64 `[S]`, the first frame of each utterance with broken outputs, else -1."""


class GreedySlots(TransducerSlots):
    """Greedy search: by the native core, which runs networks of the usual kind itself, else in fixed shapes."""

    def __init__(self, decoder: TransducerDecoder, models: RowModels, dtype: torch.dtype) -> None:
        super().__init__(decoder, models, dtype, num_beams=1)
        settings, device, slots = decoder.settings, self.waiting.device, len(self.held)
        durations = torch.tensor(self.model.durations or (), dtype=torch.int64, device=device)
        self.rules = Rules(
            self.model.blank_id, self.model.vocab_size, durations, models.vocab_size, settings.max_symbols, decoder.has_ilm
        )
        self.bad = np.full(slots, -1, dtype=np.int64)
        self.looping: Looping | None = None
        if self.networks is None:
            self.looping = looping_of(
                self.model, self.waiting, slots, 1, models.tensors, models.states.shape[1], self.rules,
                decoder.options.confidence, self.engine, WINDOW,
            )  # fmt: skip
            self.rows = self.looping.rows
        else:
            self.rows = Rows.begin(torch.zeros(slots, dtype=torch.int64, device=CPU), *self.begun_with(models))
            self.carried = Carried.room(self.networks, slots)

    def moved(self) -> None:
        if self.looping is not None:
            self.looping.read(self.waiting, self.models.tensors)

    def begin_rows(self, rows: Tensor, models: RowModels) -> None:
        self.bad[rows.cpu().numpy()] = -1
        if self.looping is not None:
            self.looping.begin(rows, *self.begun_with(models))
            return
        new = Rows.begin(torch.zeros_like(rows), *self.begun_with(models))
        for buffer, value in zip(self.rows[1:], new[1:]):
            buffer[rows] = value
        self.carried.begun[rows] = False

    def run(self, first_frames: np.ndarray, ended: int | None = None) -> None:
        if not self.held.any():
            return
        rows = self.rows
        times = rows.times.cpu().numpy() + first_frames
        held = torch.from_numpy(self.held).to(rows.ends.device)
        rows.ends.copy_(held)
        steps = self.search_frames()
        self.history.append_steps(steps, times, self.model.blank_id)
        bad = rows.bad_frames.cpu().numpy()
        self.bad = np.where((self.bad < 0) & (bad >= 0), bad + first_frames, self.bad)
        rows.times.sub_(held)
        self.leave(self.held)

    def search_once(self) -> list[np.ndarray]:
        rows = self.rows
        if self.looping is None:
            assert self.networks is not None
            confidence, tensors = self.decoder.options.confidence, self.models.tensors
            return loop(self.networks, self.waiting, tensors, self.rules, rows, confidence, carried=self.carried)
        self.looping.forget()
        self.looping.run()
        return [part.cpu().numpy() for part in self.looping.flat_steps()]

    def replay(self, lazy: LazySearch, steps: list[np.ndarray], states: Tensor) -> bool:
        numbers, tokens = steps[:2]
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=len(states))
        labels = np.full((len(states), int(counts.max(initial=0)), 1), -1, dtype=np.int32)
        labels[numbers[order], np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts), 0] = tokens[order]
        return lazy.replay(states[:, None], None, labels, self.model.blank_id)

    def carries(self) -> list[Any]:
        rows = self.rows
        known = self.looping if self.looping is not None else self.carried
        parts = known if isinstance(known, Carried) else (known.prediction, *known.state, known.internal)
        return [*rows[1:], *parts]

    @property
    def lm_states(self) -> Tensor:
        return self.rows.lm_states

    def bad_frames(self) -> np.ndarray:
        return self.bad

    def use(self, tensors: AutomatonTensors) -> None:
        super().use(tensors)
        if self.looping is not None:
            self.looping.read(self.waiting, tensors)

    def widen(self, models: RowModels, shift: int) -> None:
        super().widen(models, shift)
        self.rules = self.rules._replace(vocab_size=models.vocab_size)
        rows = self.rows
        self.rows = rows._replace(
            lm_states=widened(rows.lm_states, shift), lm_scores=widened(rows.lm_scores), weights=widened(rows.weights)
        )
        if self.looping is not None:
            self.looping.widen(self.rules, self.rows, models.tensors)

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        begun = np.flatnonzero(self.begun[slots])
        if len(begun):
            rows, of_rows = torch.from_numpy(slots[begun]).to(self.waiting.device), contexts.of(begun)
            states, scores, weights = self.rows.lm_states, self.rows.lm_scores, self.rows.weights
            scores[rows, -1] += given_back(self.models, rows, states[rows, None], self.engine)[:, 0]
            states[rows, -1] = of_rows.states[:, 0].to(states.device)
            weights[rows, -1] = of_rows.weights.to(weights.device)
        super().switch(slots, contexts)

    def live(self) -> np.ndarray:
        return np.ones((len(self.held), 1), dtype=np.bool_)

    def scores(self) -> Tensor:
        rows = self.rows
        scores = rows.acoustic_scores + (rows.weights * rows.lm_scores.double()).sum(1)
        return scores - rows.ilm_weights * rows.ilm_scores

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(slots), dtype=np.int64), self.scores().cpu().numpy()[slots]

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        given = (self.scores()[rows, None], self.rows.lm_scores[rows, None], self.rows.lm_states[rows, None])
        scores, of_lms, of_phrases = self.models.of(rows).at_end(*given, False, self.engine)
        columns = torch.stack([scores[:, 0], self.rows.acoustic_scores[rows], of_lms[:, 0], of_phrases[:, 0]], 1)
        return [[Found(0, values)] for values in columns.tolist()]


class BeamSlots(TransducerSlots):
    """Beam search. A hypothesis of ALSD that has come to the last frame waits for more, and all others of its stream with it: a
    step is taken only where it is the same whatever comes.
    """

    def __init__(self, decoder: TransducerDecoder, models: RowModels, dtype: torch.dtype) -> None:
        settings = decoder.settings._replace(num_lms=models.num_lms, has_ilm=decoder.has_ilm)
        super().__init__(decoder, models, dtype, settings.num_beams)
        slots, num_automata = models.states.shape
        arguments = (models.tensors, num_automata, models.vocab_size, settings, decoder.options.confidence)
        self.beams: beam_cpu.Search | beam_tensors.Search
        if engine_name(self.engine, self.waiting.device) == "cpu":
            self.beams = beam_cpu.Search(self.model, self.waiting, slots, *arguments, has_lines=num_automata > 0)
        else:
            kind = beam_tensors.search_kind(self.engine, self.waiting.device, settings)
            self.beams = kind(self.model, self.waiting, slots, 1, *arguments, self.engine)
        self.bad = np.full(slots, -1, dtype=np.int64)

    def moved(self) -> None:
        if isinstance(self.beams, beam_tensors.Search):
            self.beams.read(self.waiting)

    def begin_rows(self, rows: Tensor, models: RowModels) -> None:
        self.bad[rows.cpu().numpy()] = -1
        self.beams.begin(rows, *self.begun_with(models))

    def run(self, first_frames: np.ndarray, ended: int | None = None) -> None:
        if not self.held.any():
            return
        beam = self.beams.beam
        before = _array(beam.times) + first_frames[:, None]
        reaches = np.full_like(self.held, max(self.model.durations or (1,)))
        if ended is not None:
            reaches[ended] = 0
        self.reaches = torch.from_numpy(reaches)
        steps = self.search_frames()
        # Also those of streams that stood still: their hypotheses may have changed places.
        self.history.follow_steps(np.flatnonzero(self.begun), steps, before, self.live(), self.model.blank_id)
        bad = _array(beam.bad_frames)
        self.bad = np.where((self.bad < 0) & (bad >= 0), bad + first_frames, self.bad)
        times = np.where(self.live(), _array(beam.times), np.iinfo(np.int64).max)
        consumed = np.minimum(times.min(1), self.held)
        self.beams.shift(torch.from_numpy(consumed))
        self.leave(consumed)

    def search_once(self) -> list[np.ndarray]:
        self.beams.run_on(self.waiting, torch.from_numpy(self.held), self.reaches)
        return self.beams.steps()

    def replay(self, lazy: LazySearch, steps: list[np.ndarray], states: Tensor) -> bool:
        links, labels = (part.swapaxes(0, 1) for part in steps[:2])
        return lazy.replay(states, links, labels, self.model.blank_id)

    def carries(self) -> list[Any]:
        beams = self.beams
        if isinstance(beams, beam_cpu.Search):
            return [*beams.beam.arrays(), *([] if beams.predictions is None else [beams.predictions]), *beams.state]
        return [*beams.beam[:-1], *beams.beam.state]

    @property
    def lm_states(self) -> Tensor:
        return torch.from_numpy(_array(self.beams.beam.lm_states))

    def bad_frames(self) -> np.ndarray:
        return self.bad

    def use(self, tensors: AutomatonTensors) -> None:
        super().use(tensors)
        self.beams.use(tensors)

    def widen(self, models: RowModels, shift: int) -> None:
        super().widen(models, shift)
        self.beams.widen(models.tensors, models.vocab_size, models.num_lms, shift)

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        begun = np.flatnonzero(self.begun[slots])
        if len(begun):
            rows, of_rows = slots[begun], contexts.of(begun)
            lm_states = torch.from_numpy(_array(self.beams.beam.lm_states)[rows])
            back = given_back(self.models, torch.from_numpy(rows).to(self.waiting.device), lm_states, self.engine)
            self.beams.switch(torch.from_numpy(rows), of_rows.states, back, of_rows.weights)
        super().switch(slots, contexts)

    def live(self) -> np.ndarray:
        return _array(self.beams.beam.scores) > -np.inf

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        beam = self.beams.beam
        scores = _array(beam.scores)[slots]
        ranks = scores / (_array(beam.sizes)[slots] + 1) if self.decoder.options.length_normalization else scores
        places = ranks.argmax(1)
        return places, scores[np.arange(len(slots)), places]

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        names = ("scores", "acoustic_scores", "lm_scores", "lm_states", "sizes")
        beam = SimpleNamespace(**{name: torch.from_numpy(_array(getattr(self.beams.beam, name))[rows]) for name in names})
        places, scores = self.decoder.ranked(self.models.of(rows), beam, beam.sizes)
        nothing = Found(-1, (-np.inf, -np.inf, 0.0, 0.0))  # where nothing is possible, no tokens
        return [
            [Found(*both) for both in zip(*row) if both[1][0] > -np.inf] or [nothing]
            for row in zip(places.tolist(), scores.tolist())
        ]


def _array(values: np.ndarray | Tensor) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
