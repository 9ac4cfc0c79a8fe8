"""Run beam search for a transducer and one utterance in plain Python.

This is the definition against which the engines are tested.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...automaton import reference
from ..confidence import frame_confidence
from ..networks.model import TransducerModel
from ..networks.reference import Path, PlainSearch, RowOfModels, check
from ..networks.search import SearchSettings


class Search(PlainSearch):
    """A beam search in plain Python, row by row."""

    def search(self, paths: list[Path], frames: Tensor, of_row: RowOfModels, reach: int) -> list[Path]:
        row = RowSearch(self.model, frames, of_row, self.settings)
        return alsd(row, paths, reach) if self.settings.strategy == "alsd" else aes(row, paths)


class Extension(NamedTuple):
    """An extension of a hypothesis: a class and, in a TDT, a duration. The extension has the scores that it adds, and a rank
    (higher is better).
    """

    label: int
    duration: int
    score: float
    acoustic_score: float
    rank: float


class RowSearch:
    """Extend and merge the paths of one row, for both strategies."""

    def __init__(self, model: TransducerModel, frames: Tensor, row: RowOfModels, settings: SearchSettings) -> None:
        self.model, self.frames, self.row, self.settings = model, frames, row, settings

    def logits(self, path: Path, time: int) -> Tensor:
        return self.model.join(self.frames[time], path.prediction[0]).float()

    def check(self, paths: list[Path]) -> None:
        """Raise `BrokenFrame` for the first frame at which a path's logits contain NaN or infinity."""
        for path in sorted(paths, key=lambda path: path.time):
            check(self.model, self.logits(path, path.time), path.time)

    def extensions(self, path: Path, time: int) -> list[Extension]:
        """Return all extensions of a path at a frame, the highest rank first.

        With early pruning, durations of a TDT are paired only with the `num_beams` classes that are best without LMs.
        """
        model, settings, row, blank = self.model, self.settings, self.row, self.model.blank_id
        logits = self.logits(path, time)
        token_logits = logits[: model.vocab_size]
        log_probs = token_logits.log_softmax(0)
        added = self.added(path)
        blank_added = torch.zeros((), device=logits.device)
        if settings.blank_aware:
            total = float(row.weights[: row.num_lms].sum()) - row.ilm_weight
            others = token_logits.clone()
            others[blank] = -torch.inf
            if total:
                added = added + total * (others.logsumexp(0) - token_logits.logsumexp(0))
                if log_probs[blank] > -torch.inf:
                    blank_added = total * log_probs[blank]
        added[blank] = blank_added
        exhausted = settings.strategy == "alsd" and path.symbols >= settings.max_symbols
        labels = [label for label in range(model.vocab_size) if label == blank or not exhausted]
        acoustic, extra = log_probs.tolist(), added.tolist()
        by_fused = settings.late
        labels.sort(key=lambda label: -acoustic[label] - (extra[label] if by_fused and acoustic[label] > -math.inf else 0.0))
        choices = [(0, 0.0)]
        if model.durations is not None:
            choices = list(zip(model.durations, logits[model.vocab_size :].log_softmax(0).tolist()))
            if not settings.late:
                del labels[settings.num_beams :]
                by_fused = True  # ranks the pairs of these classes and durations
        extensions = []
        for label in labels:
            for duration, log_prob in choices:
                score = acoustic[label] + log_prob
                if label == blank:
                    duration = max(duration, 1)
                if score > -math.inf:
                    rank = score + extra[label] if by_fused else score
                    extensions.append(Extension(label, duration, score + extra[label], score, rank))
        return sorted(extensions, key=lambda extension: -extension.rank)

    def added(self, path: Path) -> Tensor:
        """Return the weighted LM scores of the classes, `[V]`."""
        row, classes = self.row, self.model.vocab_size
        added = torch.zeros(classes, device=self.frames.device)
        if len(row.weights):
            scores = reference.scores(row.read(path.lm_states), path.lm_states, row.vocab_size)
            # A class that no LM scores counts as one of V equally likely tokens; with 0 it would win as it cost nothing.
            full = torch.full((len(row.weights), max(classes, row.vocab_size)), -math.log(row.vocab_size), device=added.device)
            full[row.num_lms :] = 0.0
            full[:, : row.vocab_size] = scores
            listens = row.weights != 0  # 0 * -inf would be NaN
            added = (row.weights[listens, None] * full[listens, :classes]).sum(0)
        if row.ilm_weight:
            added = added - row.ilm_weight * self.model.internal_lm(path.prediction[0])
        return added

    def extended(self, path: Path, extension: Extension, time: int) -> Path:
        """Return a path with one more step, at frame `time`. Later, `caught_up` feeds the token to networks and automata."""
        label, duration = extension.label, extension.duration
        extended = path._replace(
            time=min(time + duration, len(self.frames)), symbols=0, score=path.score + extension.score,
            acoustic_score=path.acoustic_score + extension.acoustic_score, steps=(*path.steps, (label, time, duration)),
            confidences=(*path.confidences, 0.0), fresh=path.fresh + 1,
        )  # fmt: skip
        if label == self.model.blank_id:
            return extended
        return extended._replace(tokens=(*path.tokens, label), symbols=0 if duration else path.symbols + 1)

    def caught_up(self, path: Path) -> Path:
        """Return a path after feeding its last token to networks and automata. This is needed only if the path stays in the
        beam.
        """
        if path.read == len(path.tokens):
            return path
        token, states, measure = path.tokens[-1], path.lm_states, self.settings.confidence
        confidence, gains = 0.0, torch.zeros_like(path.lm_scores)
        if measure is not None:
            logits = self.logits(path, path.steps[-1][1])[: self.model.vocab_size]
            confidence = float(frame_confidence(logits[None, None], measure))
        if len(states) and token < self.row.vocab_size:
            automaton, tokens = self.row.read(states), torch.full_like(states, token)
            gains, states = reference.step(automaton, states, tokens, self.row.vocab_size)
        prediction, state = self.model.predict(torch.tensor([token], device=self.frames.device), path.state)
        return path._replace(
            prediction=prediction, state=state, lm_states=states, lm_scores=path.lm_scores + gains, read=len(path.tokens),
            confidences=(*path.confidences[:-1], confidence),
        )  # fmt: skip

    def merged(self, ways: list[Path]) -> Path:
        """Merge several alignments of the same tokens up to the same frame. Return one path, which has the merged scores."""
        best = max(ways, key=lambda way: way.score)
        if not self.settings.log_sum:
            return best
        score, acoustic_score = (
            float(torch.tensor(scores, dtype=torch.float64).logsumexp(0))
            for scores in ([way.score for way in ways], [way.acoustic_score for way in ways])
        )
        return best._replace(score=score, acoustic_score=acoustic_score)

    def best(self, ways: list[Path]) -> list[Path]:
        """Merge alignments of the same tokens up to the same frame, and return the best hypotheses, best first.

        In a tie, the hypothesis whose best alignment comes first in `ways` wins.
        """
        groups: dict[tuple[tuple[int, ...], int], list[Path]] = {}
        for way in ways:
            groups.setdefault((way.tokens, way.time), []).append(way)
        leading = [way for way in ways if way is max(groups[way.tokens, way.time], key=lambda other: other.score)]
        merged = [self.merged(groups[way.tokens, way.time]) for way in leading]
        return [
            self.caught_up(path)
            for path in sorted(merged, key=lambda path: -path.score - path.share)[: self.settings.num_beams]
        ]


def alsd(search: RowSearch, beam: list[Path], reach: int = 0) -> list[Path]:
    """Search by alignment-length synchronous decoding (Saon et al., ICASSP 2020) and return the new beam.

    In each step, every hypothesis takes one blank or one token. So all hypotheses have the same number of steps, and their
    scores are comparable. The frontier is a diagonal of the lattice: a hypothesis with more tokens is at an earlier frame.
    Hypotheses past the last frame don't move.

    Args:
        reach: if more frames may come, the largest number of frames that one step can advance; otherwise 0. The beam waits if
            the next step of any hypothesis might lead past the last frame. This step needs frames that haven't arrived, and
            without this step the other hypotheses can't be pruned correctly.
    """
    end = len(search.frames)
    while going := [path for path in beam if path.time < end]:
        if reach and max(path.time for path in beam) + reach > end:
            break
        search.check(going)
        ways: list[Path] = []
        for path in beam:
            if path.time >= end:
                ways.append(path)
                continue
            for extension in search.extensions(path, path.time)[: search.settings.most_extensions]:
                ways.append(search.extended(path, extension, path.time))
        beam = search.best(ways)
    return beam


def aes(search: RowSearch, beam: list[Path]) -> list[Path]:
    """Search by adaptive expansion search (Kim et al., IEEE SPL 2020) and return the new beam.

    At each frame, a hypothesis takes up to `aes_steps` tokens and then a blank. The expansion is adaptive: a class extends the
    hypothesis if its score is at most `aes_gamma` below the best class's score. If the model is certain, few classes extend a
    hypothesis.
    """
    settings, blank = search.settings, search.model.blank_id
    while beam and beam[0].time < len(search.frames):
        time = beam[0].time
        search.check(beam)
        # Prefix merging: if the beam has a hypothesis without its last token, that one reaches it at this frame, too.
        by_tokens: dict[tuple[int, ...], Path] = {}
        for path in sorted(beam, key=lambda path: len(path.tokens)):
            parent = by_tokens.get(path.tokens[:-1]) if path.tokens else None
            if parent is not None:
                for extension in search.extensions(parent, time):
                    if extension.label == path.tokens[-1]:
                        merged = search.merged([path, search.extended(parent, extension, time)])
                        path = merged._replace(share=path.share)
            by_tokens[path.tokens] = search.caught_up(path)
        beam = [by_tokens[path.tokens] for path in beam]
        for taken in range(settings.aes_steps + 1):
            listed = {path.tokens for path in beam}
            search.check([path for path in beam if path.time == time])
            ways: list[Path] = []
            for path in beam:
                if path.time > time:  # it has taken its blank
                    ways.append(path)
                    continue
                extensions = search.extensions(path, time)
                if taken == settings.aes_steps:
                    extensions = [extension for extension in extensions if extension.label == blank]
                for extension in extensions[: settings.most_extensions]:
                    if extension.rank > extensions[0].rank - settings.aes_gamma:
                        way = search.extended(path, extension, time)
                        if extension.label == blank or way.tokens not in listed:
                            ways.append(way)
            beam = search.best(ways)
            if all(path.time > time for path in beam):
                break
    return beam
