"""Define sessions of transducers: for whole utterances, and for streams whose frames arrive in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...fusion.rows import RowModels
from ...search.networks.search import TransducerSearch
from ..hypotheses import Hypothesis, Writing
from ..partials import Spoken
from ..second_pass import what_is_added
from .session import Found, Slots, Switch, broken_frames, given_back

NO_CLASS = -2  # no label has this id: in place of the blank where the history keeps blanks, too


class TransducerPath(NamedTuple):
    """Hold a hypothesis of a whole utterance: its scores, and its steps (tokens, and blanks if they were kept)."""

    scores: Sequence[float]  # see `Found`. If no hypothesis is possible, the first score is -inf and there are no steps.
    # the tokens, or all classes including blanks. A step's end is its first frame plus the number of frames that the search
    # advanced, at least 1.
    steps: Spoken
    lm_left_out: bool = False  # as in `Hypothesis`

    def tokens(self, blank_id: int) -> list[int]:
        """Return the tokens of the steps, without blanks."""
        return [token for token in self.steps.ids.tolist() if token != blank_id]

    def plus(self, more: float) -> TransducerPath:
        """Return the path with `more` added to the total score."""
        return self._replace(scores=(self.scores[0] + more, *self.scores[1:]))

    def written(self, writing: Writing, length: int) -> Hypothesis:
        """Return the path as a `Hypothesis` of an utterance of `length` frames. The steps mustn't have blanks."""
        ids, starts, ends, confidences = self.steps
        hypothesis = writing.hypothesis(
            self.scores, ids.tolist(), starts.tolist(), np.minimum(ends, length).tolist(), confidences.tolist()
        )
        return replace(hypothesis, lm_left_out=True) if self.lm_left_out else hypothesis


def rescored_paths(
    paths: Sequence[Sequence[TransducerPath]], texts: Sequence[Sequence[str]], rescorer: Any, weight: float | Tensor,
    word_bonus: float | Tensor, rank: Callable[[TransducerPath], float],
) -> list[list[TransducerPath]]:  # fmt: skip
    """Rerank paths, as `hf_ngpulm.decoding.second_pass.rescored` reranks hypotheses. `texts`: the text of each path."""
    added = what_is_added(texts, rescorer.scores(texts), weight, word_bonus)
    changed = [[path.plus(more) for path, more in zip(*of_row)] for of_row in zip(paths, added)]
    return [sorted(of_row, key=rank, reverse=True) for of_row in changed]


class TransducerSlots(Slots):
    """Run a transducer's search, and keep the frames that the search can't use yet.

    In ALSD, hypotheses are at different frames. If the next step of a hypothesis needs a frame that hasn't arrived, the whole
    stream waits. Without that hypothesis, the step would give another beam, and results would depend on the chunk sizes.

    Args:
        search: the search, with a row for each slot.
        waiting: `[S, T, D]`, each slot's frames, from the frame of the hypothesis that is furthest behind. T grows on demand.
        keeps_blanks: whether the paths that `paths` returns include blanks.
    """

    def __init__(
        self, decoder: Any, models: RowModels, search: TransducerSearch, waiting: Tensor,
        keeps_blanks: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(decoder, models, search.settings.num_beams)
        self.search, self.waiting, self.width, self.engine = search, waiting, search.width, decoder.options.engine
        self.is_greedy = decoder.options.is_greedy
        self.dropped = NO_CLASS if keeps_blanks else decoder.blank_id
        slots = len(models.states)
        self.held = np.zeros(slots, dtype=np.int64)  # number of waiting frames
        self.bad = np.full(slots, -1, dtype=np.int64)  # the first broken frame of each utterance
        self.begun = np.zeros(slots, dtype=np.bool_)

    def feed_whole(self, lengths: np.ndarray) -> None:
        """Decode the waiting frames as whole utterances. `lengths`, int64 `[S]`, has each utterance's number of frames."""
        self.search.begin(np.arange(len(lengths)), self.models)
        self.begun[:] = True
        self.frames, self.held = lengths, lengths
        self._run(np.zeros_like(lengths))

    def paths(self) -> list[list[TransducerPath]]:
        """Return up to `num_searched` paths per slot, the best one first. The scores include the utterance's end."""
        options = self.decoder.options
        ranked = self.ranked(slice(None), options.score_eos, options.num_searched)
        rows = np.repeat(np.arange(len(ranked)), [len(of_row) for of_row in ranked])
        places = np.array([best.place for of_row in ranked for best in of_row], dtype=np.int64)
        sizes, tails = self.history.tails_of(rows, np.maximum(places, 0))
        sizes[places < 0] = 0
        steps = (Spoken(*(column[i, :size] for column in tails)) for i, size in enumerate(sizes.tolist()))
        return [[TransducerPath(best.scores, next(steps)) for best in of_row] for of_row in ranked]

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.held[slot], self.bad[slot], self.begun[slot] = 0, -1, False

    def refusal(self, chunk: Tensor) -> str | None:
        if chunk.dim() != 2 or chunk.dtype != self.waiting.dtype or (self.width or chunk.shape[1]) != chunk.shape[1]:
            of_width = "D" if self.width is None else str(self.width)
            return f"should be encoder frames {self.waiting.dtype} [T, {of_width}], got {chunk.dtype} {tuple(chunk.shape)}"
        return None

    def is_broken(self, slot: int) -> bool:
        return bool(self.bad[slot] >= 0)

    def step(self, slots: np.ndarray, chunks: Sequence[Tensor]) -> np.ndarray:
        if self.width is None:
            self.width = chunks[0].shape[1]
            self.waiting = self.waiting.new_zeros((*self.waiting.shape[:2], self.width))
        lengths = np.array([len(chunk) for chunk in chunks], dtype=np.int64)
        frames = torch.cat(list(chunks))
        bad_frames = broken_frames(frames, lengths)
        taken = np.where(bad_frames < 0, lengths, 0)
        bad_frames = np.where(bad_frames >= 0, bad_frames + self.frames[slots], -1)
        self._wait(slots, frames, lengths, taken)
        self._begin_new(slots)
        self.frames[slots] += taken
        self.held[slots] += taken
        self._go_on()
        broken = self.bad[slots]
        self.held[slots[broken >= 0]] = 0
        return np.where(broken >= 0, broken, bad_frames)

    def finish(self, slot: int) -> list[Hypothesis]:
        self._begin_new(np.array([slot]))
        self._go_on(ended=slot)
        return super().finish(slot)

    def _wait(self, slots: np.ndarray, frames: Tensor, lengths: np.ndarray, taken: np.ndarray) -> None:
        """Append frames to the waiting frames of some slots.

        Args:
            frames: the frames of the slots, one slot after the other.
            lengths: number of frames of each slot.
            taken: number of frames to append for each slot: `lengths`, or 0 for a slot to skip.
        """
        room = self.waiting.shape[1]
        needed = int((self.held[slots] + taken).max(initial=0))
        if needed > room:
            grown = self.waiting.new_zeros((len(self.waiting), max(needed, 2 * room), self.waiting.shape[2]))
            grown[:, :room] = self.waiting
            self.waiting, room = grown, grown.shape[1]
        if len(slots) == 1 and taken[0]:  # one live stream: computing places would take most of a step's time
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
            models = self.models.of(torch.from_numpy(new).to(self.waiting.device))
            self.search.begin(new, models._replace(ilm_weights=self.decoder.ilm_weights(models)))

    def _go_on(self, ended: int | None = None) -> None:
        """Decode the waiting frames as far as possible. The slot `ended` gets no more frames."""
        if not self.held.any():
            return
        reaches = np.full_like(self.held, max(self.decoder.model.durations or (1,)))
        if ended is not None:
            reaches[ended] = 0
        self._run(reaches)
        times = np.where(self.live(), self.search.array("times"), np.iinfo(np.int64).max)
        consumed = np.minimum(times.min(1), self.held)
        self.search.shift(consumed)
        self._leave(consumed)

    def _run(self, reaches: np.ndarray) -> None:
        """Search the waiting frames. With delayed fusion, also add the rescorer's shares in slots whose turn has come.
        `reaches`: see `TransducerSearch.run_on`.
        """
        delayed, waits = self.delayed, max(self.decoder.model.durations or (1,))
        if delayed is None:
            self._search(self.held, reaches)
            return
        while True:
            # Before the rescorer's turn, a slot searches as if only the frames up to the turn had arrived. Otherwise the turns
            # would depend on the chunk sizes.
            due = self.begun & (self.bad < 0) & (delayed.turns <= self.frames)
            held = np.where(due, delayed.turns - (self.frames - self.held), self.held)
            self._search(np.where(self.bad < 0, held, 0), np.where(due, waits, reaches))
            slots = np.flatnonzero(due & (self.bad < 0))
            if not len(slots):
                return
            self.search.share(slots, delayed.shares(slots))

    def _search(self, held: np.ndarray, reaches: np.ndarray) -> None:
        """Search waiting frames, and append the steps to the histories. `held`: int64 `[S]`, number of frames to search in each
        slot. `reaches`: see `TransducerSearch.run_on`.
        """
        first_frames = self.frames - self.held
        before = self.search.array("times") + first_frames[:, None]
        steps = self.search.searched(self.models, self.waiting, held, reaches)
        # Streams without a step are included, as their hypotheses may have changed places.
        self.history.follow_steps(np.flatnonzero(self.begun), steps, before, self.live(), self.dropped)
        bad = self.search.array("bad_frames")
        self.bad = np.where((self.bad < 0) & (bad >= 0) & self.begun, bad + first_frames, self.bad)

    def _leave(self, consumed: np.ndarray) -> None:
        """Drop the first `consumed` `[S]` waiting frames of each slot. The remaining frames move to the front."""
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

    def use(self, tensors: AutomatonTensors) -> None:
        super().use(tensors)
        self.search.use(self.models)

    def widen(self, models: RowModels, shift: int) -> None:
        super().widen(models, shift)
        self.search.widen(models, shift)

    def switch(self, slots: np.ndarray, contexts: Switch) -> None:
        begun = np.flatnonzero(self.begun[slots])
        if len(begun):
            rows, of_rows = slots[begun], contexts.of(begun)
            lm_states = torch.from_numpy(self.search.array("lm_states")[rows])
            back = given_back(self.models, torch.from_numpy(rows).to(self.waiting.device), lm_states, self.engine)
            self.search.switch(rows, of_rows.states.numpy(), back.cpu().numpy(), of_rows.weights.cpu().numpy())
        super().switch(slots, contexts)

    def live(self) -> np.ndarray:
        if self.is_greedy:
            return np.ones((len(self.held), 1), dtype=np.bool_)
        return self.search.array("scores") > -np.inf

    def _shares(self, rows: np.ndarray | slice) -> Any:
        return 0.0 if self.delayed is None else self.search.array("shares")[rows]

    def standing(self, slots: np.ndarray) -> np.ndarray:
        return self.search.array("scores")[slots] + self._shares(slots)

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores = self.search.array("scores")[slots]
        places = self._ranks(self.standing(slots), slots).argmax(1)
        return places, scores[np.arange(len(slots)), places]

    def _ranks(self, scores: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
        if self.is_greedy or not self.decoder.options.length_normalization:
            return scores
        return scores / (self.search.array("sizes")[rows] + 1)

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        names = ("acoustic_scores", "scores", "lm_scores", "lm_states")
        acoustic, scores, lm_scores, states = (torch.from_numpy(self.search.array(name)[rows]) for name in names)
        models = self.models if rows == slice(None) else self.models.of(rows)
        ended = models.at_end(scores, lm_scores, states, score_eos and not self.is_greedy, self.engine)
        columns = np.stack([part.numpy() for part in (ended[0], acoustic, *ended[1:])], 2)
        order = (-self._ranks(columns[..., 0] + self._shares(rows), rows)).argsort(axis=1, kind="stable")[:, :most]
        nothing = Found(-1, (-np.inf, -np.inf, 0.0, 0.0))  # if no hypothesis is possible
        return [
            [Found(place, of_place[place]) for place in places if of_place[place][0] > -np.inf] or [nothing]
            for places, of_place in zip(order.tolist(), columns.tolist())
        ]
