"""Base of the transducer searches in plain Python, greedy or with beams. They search row by row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...fusion.rows import RowModels, widened
from .model import State, TransducerModel
from .search import STILL, SearchSettings, TransducerSearch, ilm_weights_of


class Path(NamedTuple):
    """A hypothesis of one row."""

    tokens: tuple[int, ...]  # tokens without blanks
    # prediction, state: [1, D] and [1, ...], output and state of the prediction network after the first `read` tokens
    prediction: Tensor
    state: State
    # lm_states, lm_scores: int32 and float32 [M], states and unweighted scores of the automata after the first `read` tokens
    lm_states: Tensor
    lm_scores: Tensor
    time: int = 0  # index of the present frame
    symbols: int = 0  # number of tokens emitted at the present frame
    # score, acoustic_score: natural log, the total score and its acoustic part, over all merged alignments
    score: float = 0.0
    acoustic_score: float = 0.0
    share: float = 0.0  # see `TransducerSearch.share`
    # in greedy search, the unweighted internal LM score of those tokens from whose score the internal LM was subtracted
    ilm_score: float = 0.0
    # steps of the best alignment. Each step is a label, a frame, and the number of frames that the path advanced.
    steps: tuple[tuple[int, int, int], ...] = ()
    confidences: tuple[float, ...] = ()  # confidence of each step; 0 for a blank
    origin: int = 0  # the path's place in the beam at the beginning of the last `run_on`
    fresh: int = 0  # number of steps since the beginning of the last `run_on`
    read: int = 0

    @classmethod
    def begin(cls, model: TransducerModel, like: Tensor, lm_states: Tensor) -> Path:
        return cls((), *model.start(1, like), lm_states, torch.zeros(len(lm_states), device=lm_states.device))


class RowOfModels(NamedTuple):
    """Models of one row."""

    read: Callable[[Tensor], AutomatonTensors]  # returns the automata for queries of some states
    weights: Tensor  # [M], weights of the automata
    vocab_size: int  # number of token ids that the automata score
    num_lms: int  # number of language models among the automata. They come first.
    ilm_weight: float = 0.0  # weight of the internal LM, which is subtracted


class BrokenFrame(Exception):
    """Raised if logits contain NaN or infinity. `args[0]` is the index of the frame."""


def check(model: TransducerModel, logits: Tensor, time: int) -> None:
    """Raise `BrokenFrame(time)` if the logits `[C]` contain NaN or +inf, or if all of them are -inf."""
    parts = logits.split([model.vocab_size, len(model.durations or ())])
    if not all(bool(part.logsumexp(0).isfinite()) for part in parts if len(part)):
        raise BrokenFrame(time)


class PlainSearch(TransducerSearch):
    """A search whose rows are lists of paths. It defines the results of all engines, so it is simple and not fast."""

    def __init__(self, model: TransducerModel, like: Tensor, size: int, models: RowModels, settings: SearchSettings) -> None:
        super().__init__(model, like, size, models, settings)
        self.weights = torch.zeros((size, models.states.shape[1]), device=like.device)
        self.ilm_weights = torch.zeros(size, device=like.device)
        self.paths: list[list[Path]] = [[] for _ in range(size)]
        self.bad_frames = np.full(size, -1, dtype=np.int64)

    @abstractmethod
    def search(self, paths: list[Path], frames: Tensor, of_row: RowOfModels, reach: int) -> list[Path]:
        """Search the frames `[T, D]` of a row and return the row's new paths. `reach` is the row's value of `reaches`, see
        `run_on`.

        Raises BrokenFrame if a frame's logits contain NaN or infinity.
        """

    def begin(self, rows: np.ndarray, models: RowModels) -> None:
        self.weights[rows], self.ilm_weights[rows] = models.weights.float(), ilm_weights_of(models)
        self.bad_frames[rows] = -1
        for row, states in zip(rows.tolist(), models.states):
            self.paths[row] = [Path.begin(self.model, self.like, states.to(torch.int32))]

    def run_on(self, frames: Tensor, lengths: np.ndarray, reaches: np.ndarray) -> None:
        for row, (length, reach) in enumerate(zip(lengths.tolist(), reaches.tolist())):
            paths = [path._replace(origin=place, fresh=0) for place, path in enumerate(self.paths[row])]
            of_models = (self.models.reading, self.weights[row], self.models.vocab_size, self.models.num_lms)
            try:
                if self.bad_frames[row] < 0:
                    paths = self.search(
                        paths, frames[row, :length], RowOfModels(*of_models, float(self.ilm_weights[row])), reach
                    )
            except BrokenFrame as broken:
                self.bad_frames[row] = broken.args[0]
            self.paths[row] = paths

    def steps(self) -> list[np.ndarray]:
        every = [(row, place, path) for row, paths in enumerate(self.paths) for place, path in enumerate(paths)]
        shape = (max((path.fresh for *_, path in every), default=0) + 1, self.size, self.settings.num_beams)
        links, labels = np.tile(np.arange(shape[2], dtype=np.int32), (*shape[:2], 1)), np.full(shape, STILL, dtype=np.int32)
        moves, confidences = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.float32)
        for row, place, path in every:
            links[0, row, place] = path.origin
            for step, (label, _, move) in enumerate(path.steps[len(path.steps) - path.fresh :], 1):
                labels[step, row, place], moves[step, row, place] = label, move
            confidences[1 : path.fresh + 1, row, place] = path.confidences[len(path.steps) - path.fresh :]
        return [links, labels, moves, confidences]

    @property
    def beam(self) -> Any:  # type: ignore[override]
        num_beams, num_automata = self.settings.num_beams, self.weights.shape[1]
        none = torch.zeros(num_automata)
        empty = Path((), self.like, (), none, none, score=-np.inf, acoustic_score=-np.inf)
        rows = [paths + [empty] * (num_beams - len(paths)) for paths in self.paths]

        def of_each(dtype: type, value: Any) -> np.ndarray:
            return np.array([[value(path) for path in row] for row in rows], dtype=dtype).reshape(self.size, num_beams)

        automata = {
            name: np.array([[getattr(path, name).tolist() for path in row] for row in rows], dtype=dtype)
            for name, dtype in (("lm_states", np.int32), ("lm_scores", np.float32))
        }
        return SimpleNamespace(
            scores=of_each(np.float64, lambda path: path.score), times=of_each(np.int64, lambda path: path.time),
            acoustic_scores=of_each(np.float64, lambda path: path.acoustic_score), bad_frames=self.bad_frames,
            sizes=of_each(np.int64, lambda path: len(path.tokens)), shares=of_each(np.float64, lambda path: path.share),
            **{name: values.reshape(self.size, num_beams, num_automata) for name, values in automata.items()},
        )  # fmt: skip

    def shift(self, frames: np.ndarray) -> None:
        for row, count in enumerate(frames.tolist()):
            self._renew(row, lambda place, path, by=count: path._replace(time=path.time - by))

    def widen(self, models: RowModels, shift: int) -> None:
        self.use(models)
        self.weights = widened(self.weights)
        for row in range(self.size):
            self._renew(row, lambda place, path: path._replace(
                lm_states=widened(path.lm_states, shift), lm_scores=widened(path.lm_scores)
            ))  # fmt: skip

    def switch(self, rows: np.ndarray, states: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        for i, row in enumerate(rows.tolist()):
            old_weight = float(self.weights[row, -1])
            self.weights[row, -1] = float(weights[i])

            def switched(place: int, path: Path, i: int = i, weight: float = old_weight) -> Path:
                lm_states, lm_scores = path.lm_states.clone(), path.lm_scores.clone()
                lm_states[-1] = int(states[i, place])
                lm_scores[-1] += float(scores[i, place])
                return path._replace(
                    lm_states=lm_states, lm_scores=lm_scores, score=path.score + weight * float(scores[i, place])
                )

            self._renew(row, switched)

    def share(self, rows: np.ndarray, shares: np.ndarray) -> None:
        for row, of_row in zip(rows.tolist(), shares.tolist()):
            self._renew(row, lambda place, path, of=of_row: path._replace(share=of[place]))

    def _renew(self, row: int, change: Any) -> None:
        self.paths[row] = [change(place, path) for place, path in enumerate(self.paths[row])]
