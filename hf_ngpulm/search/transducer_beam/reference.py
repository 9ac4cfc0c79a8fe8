"""Beam search for a transducer and one utterance, written plainly: the definition."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...automaton import reference
from ...automaton.tensors import AutomatonTensors
from ..networks.model import State, TransducerModel
from . import BeamSettings


class Path(NamedTuple):
    """A hypothesis.

    Args:
        tokens: without blanks.
        time: the frame that it is at.
        score, acoustic_score: of all ways to it that were kept.
        symbols: tokens emitted at this frame.
        steps: of the best way: label, frame, and frames that the search moved on.
        lm_states, lm_scores: int32 and float32 `[M]`.
    """

    tokens: tuple[int, ...]
    time: int
    score: float
    acoustic_score: float
    symbols: int
    steps: tuple[tuple[int, int, int], ...]
    lm_states: Tensor
    lm_scores: Tensor


class Extension(NamedTuple):
    """Hold what a hypothesis may be extended by: a class (and a duration), what it adds to scores, and what it is ranked by."""

    label: int
    duration: int
    score: float
    acoustic_score: float
    rank: float


class Search:
    """Share what is the same for both strategies."""

    def __init__(
        self,
        model: TransducerModel,
        frames: Tensor,
        automaton: AutomatonTensors,
        states: Tensor,
        weights: Tensor,
        vocab_size: int,
        settings: BeamSettings,
        ilm_weight: float,
    ) -> None:
        self.model, self.frames, self.settings, self.ilm_weight = model, frames, settings, ilm_weight
        self.automaton, self.weights, self.vocab_size = automaton, weights, vocab_size
        self.first = Path((), 0, 0.0, 0.0, 0, (), states, torch.zeros(len(states)))
        self.predictions: dict[tuple[int, ...], tuple[Tensor, State]] = {(): model.start(1, frames)}

    def prediction(self, tokens: tuple[int, ...]) -> Tensor:
        if tokens not in self.predictions:
            self.prediction(tokens[:-1])
            state = self.predictions[tokens[:-1]][1]
            self.predictions[tokens] = self.model.predict(torch.tensor(tokens[-1:], device=self.frames.device), state)
        return self.predictions[tokens][0][0]

    def extensions(self, path: Path, time: int) -> list[Extension]:
        """Return all classes (and durations) that may follow, the highest rank first.

        With early pruning a TDT has the durations of `num_beams` classes only, the model's own best ones.
        """
        model, settings, blank = self.model, self.settings, self.model.blank_id
        prediction = self.prediction(path.tokens)
        logits = model.join(self.frames[time], prediction).float()
        log_probs = logits[: model.vocab_size].log_softmax(0)
        added = self.added(path, prediction)
        blank_added = torch.zeros(())
        if settings.blank_aware:
            total = float(self.weights[: settings.num_lms].sum()) - self.ilm_weight
            others = logits[: model.vocab_size].clone()
            others[blank] = -torch.inf
            if total:
                added = added + total * (others.logsumexp(0) - logits[: model.vocab_size].logsumexp(0))
                blank_added = total * log_probs[blank]
        added[blank] = blank_added
        exhausted = settings.strategy == "alsd" and path.symbols >= settings.max_symbols
        labels = [label for label in range(model.vocab_size) if label == blank or not exhausted]
        by_fused = settings.late
        labels.sort(key=lambda label: -float(log_probs[label]) - (float(added[label]) if by_fused else 0.0))
        if model.durations is not None and not settings.late:
            del labels[settings.num_beams :]
            by_fused = True  # among these, and their durations
        found = []
        for label in labels:
            acoustic, extra = float(log_probs[label]), float(added[label])
            if model.durations is None:
                choices = [(int(label == blank), 0.0)]
            else:
                choices = list(zip(model.durations, logits[model.vocab_size :].log_softmax(0).tolist()))
            for duration, log_prob in choices:
                score = acoustic + log_prob
                if label == blank:
                    duration = max(duration, 1)
                rank = score + extra if by_fused else score
                if score > -math.inf:
                    found.append(Extension(label, duration, score + extra, score, rank))
        return sorted(found, key=lambda extension: -extension.rank)

    def added(self, path: Path, prediction: Tensor) -> Tensor:
        """Return what language models add to the scores of the classes, `[V]`."""
        classes = self.model.vocab_size
        added = torch.zeros(classes)
        if len(self.weights):
            scores, _ = reference.advance(self.automaton, path.lm_states, self.vocab_size)
            # A class that no LM scores counts as one of V tokens that are equally likely: otherwise it would come for free.
            full = torch.full((len(self.weights), max(classes, self.vocab_size)), -math.log(self.vocab_size))
            full[len(self.weights[: self.settings.num_lms]) :] = 0.0
            full[:, : self.vocab_size] = scores
            added = (self.weights[:, None] * full[:, :classes]).sum(0)
        if self.ilm_weight:
            added = added - self.ilm_weight * self.model.internal_lm(prediction)
        return added

    def extended(self, path: Path, extension: Extension, time: int) -> Path:
        tokens, states, scores = path.tokens, path.lm_states, path.lm_scores
        label, duration = extension.label, extension.duration
        symbols = 0
        if label != self.model.blank_id:
            tokens = (*tokens, label)
            symbols = 0 if duration else path.symbols + 1
            if len(states) and label < self.vocab_size:
                per_lm, targets = reference.advance(self.automaton, states, self.vocab_size)
                states, scores = targets[:, label], scores + per_lm[:, label]
        return Path(
            tokens,
            min(time + duration, len(self.frames)),
            path.score + extension.score,
            path.acoustic_score + extension.acoustic_score,
            symbols,
            (*path.steps, (label, time, duration)),
            states,
            scores,
        )

    def merged(self, ways: list[Path]) -> Path:
        """Return one hypothesis of several ways to it."""
        best = max(ways, key=lambda way: way.score)
        if not self.settings.log_sum:
            return best
        score, acoustic_score = (
            float(torch.tensor([way[field] for way in ways], dtype=torch.float64).logsumexp(0))
            for field in (Path._fields.index("score"), Path._fields.index("acoustic_score"))
        )
        return best._replace(score=score, acoustic_score=acoustic_score)

    def best(self, ways: list[Path]) -> list[Path]:
        """Return the best hypotheses that some ways lead to, best first; of the same score those whose best ways come first."""
        groups: dict[tuple[tuple[int, ...], int], list[Path]] = {}
        for way in ways:
            groups.setdefault((way.tokens, way.time), []).append(way)
        merged = [self.merged(groups[way.tokens, way.time]) for way in ways if self._leads(way, groups)]
        return sorted(merged, key=lambda path: -path.score)[: self.settings.num_beams]

    @staticmethod
    def _leads(way: Path, groups: dict[tuple[tuple[int, ...], int], list[Path]]) -> bool:
        return way is max(groups[way.tokens, way.time], key=lambda other: other.score)


def alsd(search: Search) -> list[Path]:
    """Return Alignment-length synchronous decoding: every hypothesis takes one step at a time."""
    beam = [search.first]
    end = len(search.frames)
    while any(path.time < end for path in beam):
        ways: list[Path] = []
        for path in beam:
            if path.time >= end:
                ways.append(path)
                continue
            for extension in search.extensions(path, path.time)[: search.settings.num_beams]:
                ways.append(search.extended(path, extension, path.time))
        beam = search.best(ways)
    return beam


def aes(search: Search) -> list[Path]:
    """Return adaptive expansion search: frame by frame; at a frame each hypothesis takes up to `aes_steps` tokens, then a
    blank."""
    settings, blank = search.settings, search.model.blank_id
    beam = [search.first]
    for time in range(len(search.frames)):
        # A hypothesis that is another one and a token is reached from there too (at this frame).
        by_tokens: dict[tuple[int, ...], Path] = {}
        for path in sorted(beam, key=lambda path: len(path.tokens)):
            parent = by_tokens.get(path.tokens[:-1]) if path.tokens else None
            if parent is not None:
                for extension in search.extensions(parent, time):
                    if extension.label == path.tokens[-1]:
                        path = search.merged([path, search.extended(parent, extension, time)])
            by_tokens[path.tokens] = path
        beam = [by_tokens[path.tokens] for path in beam]
        for taken in range(settings.aes_steps + 1):
            known = {path.tokens for path in beam}
            ways: list[Path] = []
            for path in beam:
                if path.time > time:  # it has had its blank
                    ways.append(path)
                    continue
                extensions = search.extensions(path, time)
                if taken == settings.aes_steps:
                    extensions = [extension for extension in extensions if extension.label == blank]
                for extension in extensions[: settings.num_beams + settings.aes_beta]:
                    if extension.rank > extensions[0].rank - settings.aes_gamma:
                        way = search.extended(path, extension, time)
                        if extension.label == blank or way.tokens not in known:
                            ways.append(way)
            beam = search.best(ways)
            if all(path.time > time for path in beam):
                break
    return beam


def beam_search(
    model: TransducerModel,
    frames: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    vocab_size: int,
    settings: BeamSettings,
    ilm_weight: float = 0.0,
) -> list[Path]:
    """Decode one utterance: `[T, D]` projected frames; states int32 `[M]` and weights `[M]` of the automata."""
    search = Search(model, frames, automaton, states, weights, vocab_size, settings, ilm_weight)
    return search.best((alsd if settings.strategy == "alsd" else aes)(search))
