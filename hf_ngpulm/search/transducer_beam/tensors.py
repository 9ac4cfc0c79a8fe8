"""Beam search for transducers with torch's operations, on any device; on a GPU `gpu` puts kernels in place of its steps.

All shapes are fixed and nothing is asked of the device within a step: the host looks only every `STEPS` steps whether all
hypotheses have ended. Those that have, and rows, stand still. A search lives in buffers with room for more rows and frames
than a batch may have, so that on a GPU a block of steps can be a CUDA graph that serves many batches.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...engines.choice import engine_name
from ...engines.devices import current
from ...fusion.fusion import widened
from ..confidence import frame_confidence
from ..networks.graphs import Kept, Repeated, Work, addresses, grown, overwrite, recalled, replace_where
from ..networks.model import State, TransducerModel
from . import FIRST_HASH, STILL, BeamHypotheses, BeamSettings
from .tracing import hypotheses

STEPS = 8  # between two looks at whether anything is left to do
LARGE = 1 << 62
MIX, ADD = 6364136223846793005, 1442695040888963407


class Beam(NamedTuple):
    """Hypotheses of `B` rows, `K` each. An empty place has the score -inf.

    Args:
        scores, acoustic_scores: float64 `[B, K]`.
        times, symbols, sizes, last_tokens, hashes, parent_hashes: int64 `[B, K]`.
        lm_states, lm_scores: int32 and float32 `[B, K, M]`.
        predictions: `[B * K, D]`, of the prediction network, projected.
        bad_frames: int64 `[B]`.
        state: of the prediction network, parts `[B * K, ...]`.
    """

    scores: Tensor
    acoustic_scores: Tensor
    times: Tensor
    symbols: Tensor
    sizes: Tensor
    last_tokens: Tensor
    hashes: Tensor
    parent_hashes: Tensor
    lm_states: Tensor
    lm_scores: Tensor
    predictions: Tensor
    bad_frames: Tensor
    state: State


class Said(NamedTuple):
    """Hold what the networks and the LMs say to each hypothesis.

    Args:
        is_open: bool `[B, K]`, whether it goes on.
        log_probs: float32 `[B, K, V]`, of the model.
        fused: float32 `[B, K, V]`, with the language models.
        duration_log_probs: float32 `[B, K, D]`; empty for an RNN-T.
        confidences: float32 `[B, K]`, of the model; 0 if not asked for.
    """

    is_open: Tensor
    log_probs: Tensor
    fused: Tensor
    duration_log_probs: Tensor
    confidences: Tensor


class Step(NamedTuple):
    """Hold what a step did with each place in the beam, int64 `[B, K]`: where it was before, its label, frames moved on; and
    the confidence in its token, float32 `[B, K]`.
    """

    links: Tensor
    labels: Tensor
    moves: Tensor
    confidences: Tensor


class Search:
    """A search in buffers, for batches of up to `rows` rows and `longest` frames: `load` one, `run`, see what it `found`.

    Searches that go on when more frames come `read` another tensor, `begin` in some rows, and `run_on`, again and again.
    """

    def __init__(
        self,
        model: TransducerModel,
        frames: Tensor,
        rows: int,
        longest: int,
        automaton: AutomatonTensors,
        num_automata: int,
        vocab_size: int,
        settings: BeamSettings,
        confidence: str | None = None,
        engine: str = "auto",
        capture: Callable[[Work], Work] | None = None,
    ) -> None:
        self.model, self.settings, self.confidence, self.engine = model, settings, confidence, engine
        self.automaton, self.vocab_size = automaton, vocab_size
        device = self.device = frames.device
        num_beams = settings.num_beams
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.reaches = torch.zeros_like(self.lengths)
        self.frames = frames.new_zeros((rows, longest, frames.shape[2]))
        self.weights = torch.zeros((rows, num_automata), device=device)
        self.totals, self.ilm_weights = (torch.zeros(rows, device=device) for _ in range(2))
        self.durations = torch.tensor(model.durations or (), dtype=torch.int64, device=device)
        self.places = torch.arange(num_beams, device=device).expand(rows, num_beams)
        self.rows = torch.arange(rows, device=device)[:, None]
        self.time = torch.zeros((), dtype=torch.int64, device=device)
        self.is_open = torch.zeros((), dtype=torch.bool, device=device)
        self.beam = self.first(torch.zeros((rows, num_automata), dtype=torch.int32, device=device))
        each = 1 if settings.strategy == "alsd" else num_beams + settings.aes_steps
        self.trace = torch.zeros((3, STEPS * each, rows, num_beams), dtype=torch.int32, device=device)
        self.confidences = torch.zeros(self.trace.shape[1:], device=device)
        self.capture = capture
        self.traced: list[tuple[Tensor, Tensor]] = []
        self.make_room()

    def make_room(self) -> None:
        """Make what depends on the number of automata, and forget graphs of what there was before."""
        self.block = Repeated(self.alsd if self.settings.strategy == "alsd" else self.aes, self.carries, self.capture)
        self.known = addresses((self.frames, *self.automaton))

    def carries(self) -> list[Tensor]:
        """Return what steps change and begin with."""
        return [*self.beam[:-1], *self.beam.state, self.time]

    @property
    def most_extensions(self) -> int:
        """Return how many a hypothesis has at most."""
        settings = self.settings
        beta = settings.aes_beta if settings.strategy == "aes" else 0
        return min(settings.num_beams + beta, self.model.vocab_size * max(self.durations.numel(), 1))

    def first(self, states: Tensor) -> Beam:
        num_beams, device = self.settings.num_beams, self.device
        shape = (states.shape[0], num_beams)
        scores = torch.full(shape, -torch.inf, dtype=torch.float64, device=device)
        scores[:, 0] = 0.0
        zeros = torch.zeros(shape, dtype=torch.int64, device=device)
        lm_states = states.to(torch.int32)[:, None].repeat(1, num_beams, 1)
        predictions, state = self.model.start(shape[0] * num_beams, self.frames)
        return Beam(
            scores, scores.clone(), zeros, zeros.clone(), zeros.clone(), zeros - 1, zeros + FIRST_HASH, zeros.clone(),
            lm_states, torch.zeros(lm_states.shape, device=device), predictions.clone(), zeros[:, 0] - 1,
            tuple(part.clone() for part in state),
        )  # fmt: skip

    def load(self, frames: Tensor, lengths: Tensor, states: Tensor, weights: Tensor, ilm_weights: Tensor) -> None:
        """Take a batch; rows that it doesn't have are empty."""
        size, longest = frames.shape[:2]
        self.frames[:size, :longest] = frames
        self.lengths.zero_()[:size] = lengths
        self.weights.zero_()[:size] = weights
        self.ilm_weights.zero_()[:size] = ilm_weights
        self.totals.zero_()[:size] = weights[:, : self.settings.num_lms].sum(1) - ilm_weights
        all_states = torch.zeros((self.lengths.numel(), states.shape[1]), dtype=torch.int32, device=self.device)
        all_states[:size] = states
        self.put(self.first(all_states))
        self.forget()
        self.size, self.longest = size, longest

    def begin(self, rows: Tensor, states: Tensor, weights: Tensor, ilm_weights: Tensor) -> None:
        """Begin anew in some rows, int64 `[N]`, with automata in states `[N, M]`, their weights `[N, M]` and the internal LM's
        `[N]`.
        """
        num_beams = self.settings.num_beams
        self.weights[rows] = weights
        self.ilm_weights[rows] = ilm_weights
        self.totals[rows] = weights[:, : self.settings.num_lms].sum(1) - ilm_weights
        new = self.first(states)
        for name in set(Beam._fields) - {"predictions", "state"}:
            getattr(self.beam, name)[rows] = getattr(new, name)
        places = (rows[:, None] * num_beams + torch.arange(num_beams, device=self.device)).flatten()
        for buffer, part in zip((self.beam.predictions, *self.beam.state), (new.predictions, *new.state)):
            buffer[places] = part

    def read(self, frames: Tensor) -> None:
        """Take the frames from another tensor, `[rows, T, D]`, from now on."""
        self.frames = frames
        self.use(self.automaton)

    def use(self, tensors: AutomatonTensors) -> None:
        """Go on with automata that may lie in other tensors, at the same places."""
        self.automaton = tensors
        if addresses((self.frames, *tensors)) != self.known:
            self.make_room()

    def widen(self, tensors: AutomatonTensors, vocab_size: int, num_lms: int, shift: int) -> None:
        """Have one automaton more, which no row has yet; the states of the others are larger by `shift`."""
        beam = self.beam
        self.beam = beam._replace(lm_states=widened(beam.lm_states, shift), lm_scores=widened(beam.lm_scores))
        self.weights = widened(self.weights)
        self.vocab_size, self.settings = vocab_size, self.settings._replace(num_lms=num_lms)
        self.automaton = tensors
        self.make_room()

    def switch(self, rows: Tensor, states: Tensor, scores: Tensor, weights: Tensor) -> None:
        """Have the hypotheses of some rows, int64 `[N]`, follow other phrases.

        Args:
            states, scores: `[N, K]`, where they begin, and what the old ones give back, unweighted.
            weights: of the new ones, `[N]`.
        """
        beam, rows, scores = self.beam, rows.to(self.device), scores.to(self.device)
        beam.lm_scores[rows, :, -1] += scores
        beam.scores[rows] += self.weights[rows, -1:] * scores
        beam.lm_states[rows, :, -1] = states.to(self.device)
        self.weights[rows, -1] = weights.to(self.device)

    def run_on(self, frames: Tensor, lengths: Tensor, reaches: Tensor) -> None:
        """Go on as far as the frames reach.

        Args:
            frames: the tensor that the search reads; times of hypotheses count from its first ones.
            lengths: int64 `[B]`, frames of each row.
            reaches: int64 `[B]`, the farthest that a step of ALSD may lead where more frames may come, 0 where none will. A
                step that may lead beyond the last frame waits, since where it leads to depends on what comes.
        """
        assert frames is self.frames
        self.lengths.copy_(lengths)
        self.reaches.copy_(reaches)
        self.longest = int(lengths.max()) if len(lengths) else 0
        self.forget()
        self.run()

    def shift(self, frames: Tensor) -> None:
        """Have times count from later frames, by so many in each row, int64 `[B]`."""
        self.beam.times.sub_(frames.to(self.device)[:, None])

    def forget(self) -> None:
        """Forget what the steps so far did."""
        self.time.zero_()
        self.traced = []

    def put(self, beam: Beam) -> None:
        overwrite(tuple(self.beam[:-1]), tuple(beam[:-1]))
        overwrite(self.beam.state, beam.state)

    def run(self) -> None:
        """Take the rows, none of which has more frames than `longest`, as far as their frames reach."""
        with current(self.device):
            self.block.prepare(self.device)
            self.run_blocks()

    def run_blocks(self) -> None:
        if self.settings.strategy == "aes":
            for _ in range(0, self.longest, STEPS):
                self.run_block()
            return
        while True:
            self.run_block()
            if not bool(self.is_open):
                return

    def run_block(self) -> None:
        self.block()
        self.traced.append((self.trace.clone(), self.confidences.clone()))

    def alsd(self) -> None:
        """Take a block of steps."""
        beam, trace = self.beam, []
        for _ in range(STEPS):
            beam, steps = self.step(beam, self.limits(beam), self.settings.max_symbols)
            trace += steps
        self.is_open.copy_(((beam.scores > -torch.inf) & (beam.times < self.limits(beam)[:, None])).any())
        self.keep(beam, trace)

    def limits(self, beam: Beam) -> Tensor:
        """Return the frames before which hypotheses go on, int64 `[B]`: none in rows that wait for more."""
        latest = torch.where(beam.scores > -torch.inf, beam.times, 0).amax(1)
        return torch.where(latest + self.reaches > self.lengths, 0, self.lengths)

    def aes(self) -> None:
        """Take a block of frames."""
        beam, trace = self.beam, []
        for _ in range(STEPS):
            self.time += 1
            limits = self.lengths.minimum(self.time)
            for turn in range(self.settings.aes_steps):
                beam, steps = self.step(beam, limits, None, merges_prefixes=turn == 0)
                trace += steps
            beam, steps = self.step(beam, limits, 0)  # none but the blank is left
            trace += steps
        self.keep(beam, trace)

    def keep(self, beam: Beam, trace: list[Step]) -> None:
        self.put(beam)
        for buffer, steps in zip((*self.trace, self.confidences), zip(*trace)):
            buffer.copy_(torch.stack(steps))

    def found(self) -> BeamHypotheses:
        beam, size = self.beam, self.size
        kept = (beam.scores, beam.acoustic_scores, beam.lm_scores, beam.lm_states, beam.sizes, beam.bad_frames)
        *tensors, bad_frames = (tensor[:size].to("cpu", copy=True) for tensor in kept)
        return hypotheses(tensors, [array[:, :size] for array in self.steps()], bad_frames)

    def steps(self) -> list[np.ndarray]:
        """Return links, labels and moves (int32) of all steps, and confidences (float32) `[S, B, K]`."""
        none = (self.trace[:, :0], self.confidences[:0])
        traces, confidences = zip(none, *self.traced)
        return [*torch.cat(traces, 1).cpu().numpy(), torch.cat(confidences).cpu().numpy()]

    def ask(self, beam: Beam, limits: Tensor) -> tuple[Said, Beam]:
        """Run the joint network; a row whose outputs can't be normalised ends here."""
        model, settings = self.model, self.settings
        batch_size, num_beams = beam.scores.shape
        is_open = (beam.scores > -torch.inf) & (beam.times < limits[:, None])
        at = beam.times.clamp(max=self.frames.shape[1] - 1)
        logits = model.join(self.frames[self.rows, at].flatten(0, 1), beam.predictions).float()
        logits = logits.unflatten(0, (batch_size, num_beams))
        token_logits = logits[..., : model.vocab_size]
        normalisers = torch.logsumexp(token_logits, -1)
        duration_log_probs = torch.log_softmax(logits[..., model.vocab_size :], -1)
        broken = is_open & ~(torch.isfinite(normalisers) & ~duration_log_probs.isnan().any(-1))
        where = torch.where(broken, beam.times, LARGE).amin(1)
        beam = beam._replace(
            bad_frames=torch.where((where < LARGE) & (beam.bad_frames < 0), where, beam.bad_frames),
            times=torch.where(broken.any(1)[:, None], LARGE, beam.times),
        )
        is_open = is_open & ~broken.any(1)[:, None]
        log_probs = torch.where(is_open[..., None], token_logits - normalisers[..., None], 0.0)
        added = self.added(beam)
        confidences = torch.zeros_like(normalisers)
        if self.confidence is not None:
            confidences = frame_confidence(token_logits, self.confidence)
        of_blank = log_probs[..., model.blank_id]
        fused = log_probs + added
        if settings.blank_aware:
            others = token_logits.clone()
            others[..., model.blank_id] = -torch.inf
            totals = self.totals[:, None]
            other_log_prob = torch.where(is_open & (totals != 0), torch.logsumexp(others, -1) - normalisers, 0.0)
            fused = fused + (totals * other_log_prob)[..., None]
            of_blank = of_blank + torch.where((totals != 0) & (of_blank > -torch.inf), totals * of_blank, 0.0)
        fused = torch.where(log_probs > -torch.inf, fused, -torch.inf)  # not a NaN, if the others are impossible too
        fused[..., model.blank_id] = of_blank
        return Said(is_open, log_probs, fused, duration_log_probs, confidences), beam

    def added(self, beam: Beam) -> Tensor:
        """Return what language models add to the scores of the classes, `[B, K, V]`."""
        classes = self.model.vocab_size
        batch_size, num_beams, num_automata = beam.lm_states.shape
        added = torch.zeros((batch_size, num_beams, classes), device=beam.scores.device)
        if num_automata:
            scored = min(classes, self.vocab_size)
            states = beam.lm_states.flatten()
            scores = torch.ops.hf_ngpulm.scores(list(self.automaton), states, self.vocab_size, self.engine)
            scores = scores.view(batch_size, num_beams, num_automata, -1)[..., :scored]
            weights = self.weights[:, None, :, None]
            added[..., :scored] = torch.where(weights != 0, weights * scores, 0.0).sum(2)
            # As likely as one of V tokens that are equally likely.
            added[..., scored:] = -math.log(self.vocab_size) * self.weights[:, : self.settings.num_lms].sum(1)[:, None, None]
        if self.settings.has_ilm:
            weights = self.ilm_weights[:, None, None]
            added -= torch.where(weights != 0, weights * self.model.internal_lm(beam.predictions).view(added.shape), 0.0)
        return added

    def step(
        self, beam: Beam, limits: Tensor, most_symbols: int | None, merges_prefixes: bool = False
    ) -> tuple[Beam, list[Step]]:
        """Extend the hypotheses before the limits `[B]`."""
        model, settings = self.model, self.settings
        num_beams = settings.num_beams
        said, beam = self.ask(beam, limits)
        steps: list[Step] = []
        if merges_prefixes:
            beam, steps = self.merge_prefixes(beam, said)

        # The best extensions of each hypothesis.
        aes = settings.strategy == "aes"
        classes, durations, most = model.vocab_size, self.durations.numel(), self.most_extensions
        ranks = said.fused if settings.late else said.log_probs
        if most_symbols is not None:
            is_token = torch.arange(classes, device=ranks.device) != model.blank_id
            ranks = ranks.masked_fill((beam.symbols >= most_symbols)[..., None] & is_token, -torch.inf)
        ranks, labels = _highest(ranks, min(most, classes))
        gains, acoustic_gains = said.fused.gather(2, labels).double(), said.log_probs.gather(2, labels).double()
        is_blank = labels == model.blank_id
        moves = is_blank.to(torch.int64)
        possible = ranks > -torch.inf
        if durations:
            if not settings.late:  # the classes are chosen; LMs have a say in which of their durations are
                ranks = torch.where(possible, gains, -torch.inf)
            of_duration = said.duration_log_probs[:, :, None].double()
            ranks, chosen = (ranks[..., None] + of_duration).flatten(2).sort(dim=-1, descending=True, stable=True)
            ranks, chosen = ranks[..., :most], chosen[..., :most]
            which, moves = chosen // durations, self.durations[chosen % durations]
            labels, possible, is_blank = (values.gather(2, which) for values in (labels, possible, is_blank))
            of_duration = said.duration_log_probs.gather(2, chosen % durations).double()
            gains, acoustic_gains = (values.gather(2, which) + of_duration for values in (gains, acoustic_gains))
            moves = torch.where(is_blank, moves.clamp(min=1), moves)
        elif aes:
            possible = possible & (ranks > ranks[..., :1] - settings.aes_gamma)
        hashes = torch.where(is_blank, beam.hashes[..., None], _extend_hash(beam.hashes[..., None], labels))
        sizes = torch.where(is_blank, beam.sizes[..., None], beam.sizes[..., None] + 1)
        if aes:
            same = (hashes[..., None] == beam.hashes[:, None, None]) & (sizes[..., None] == beam.sizes[:, None, None])
            known = (same & (beam.scores > -torch.inf)[:, None, None]).any(-1)
            possible = possible & (is_blank | ~known)

        # Candidates: those, and the hypotheses that stand still.
        def candidates(of_extensions: Tensor, of_still: Tensor) -> Tensor:
            return torch.cat([of_extensions, of_still[..., None]], 2).flatten(1)

        extensions = labels.shape[2]
        scores = torch.where(possible & said.is_open[..., None], beam.scores[..., None] + gains, -torch.inf)
        scores = candidates(scores, beam.scores.masked_fill(said.is_open, -torch.inf))
        acoustic = candidates(beam.acoustic_scores[..., None] + acoustic_gains, beam.acoustic_scores)
        times = candidates((beam.times[..., None] + moves).minimum(self.lengths[:, None, None]), beam.times)
        hashes, sizes = candidates(hashes, beam.hashes), candidates(sizes, beam.sizes)
        parents = candidates(self.places[..., None].expand(-1, -1, extensions), self.places)
        labels = candidates(labels, torch.full_like(self.places, STILL))
        moves = candidates(moves, torch.zeros_like(self.places))

        best, scores, acoustic = self.merged(hashes, sizes, times, scores, acoustic)
        room = num_beams - scores.shape[1]
        if room > 0:
            best = torch.nn.functional.pad(best, (0, room))
            scores, acoustic = (torch.nn.functional.pad(values, (0, room), value=-torch.inf) for values in (scores, acoustic))
        in_order = best.argsort(1)
        scores, chosen = scores.gather(1, in_order).sort(dim=1, descending=True, stable=True)
        scores, chosen = scores[:, :num_beams], in_order.gather(1, chosen[:, :num_beams])
        best = best.gather(1, chosen)
        parents, labels, moves, times, hashes, sizes = (
            values.gather(1, best) for values in (parents, labels, moves, times, hashes, sizes)
        )
        labels = labels.masked_fill(scores == -torch.inf, STILL)
        gets_token = (labels >= 0) & (labels != model.blank_id)
        symbols = beam.symbols.gather(1, parents)
        symbols = torch.where(gets_token, torch.where(moves > 0, 0, symbols + 1), symbols.masked_fill(labels >= 0, 0))
        predictions, state = self.predicted(beam, parents, labels, gets_token)
        lm_states, lm_scores = self.followed(beam, parents, labels, gets_token)
        beam = Beam(
            scores,
            acoustic.gather(1, chosen),
            times,
            symbols,
            sizes,
            torch.where(gets_token, labels, beam.last_tokens.gather(1, parents)),
            hashes,
            torch.where(gets_token, beam.hashes.gather(1, parents), beam.parent_hashes.gather(1, parents)),
            lm_states,
            lm_scores,
            predictions,
            beam.bad_frames,
            state,
        )
        confidences = torch.where(gets_token, said.confidences.gather(1, parents), 0.0)
        return beam, [*steps, Step(parents, labels, moves, confidences)]

    def merged(
        self, hashes: Tensor, sizes: Tensor, times: Tensor, scores: Tensor, acoustic: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return groups of candidates that are the same, `[B, N]`: the best of each, and the scores of all together."""
        keys = (hashes * MIX + times) * MIX + sizes
        keys, order = keys.sort(dim=1, stable=True)
        groups = (keys.diff(dim=1, prepend=keys[:, :1]) != 0).cumsum(1)
        scores, acoustic = scores.gather(1, order), acoustic.gather(1, order)
        none = torch.full_like(scores, -torch.inf)
        best = none.scatter_reduce(1, groups, scores, "amax")
        is_best = (scores == best.gather(1, groups)) & (scores > -torch.inf)
        positions = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
        first = torch.full_like(order, scores.shape[1] - 1).scatter_reduce(
            1, groups, torch.where(is_best, positions, scores.shape[1] - 1), "amin"
        )
        if not self.settings.log_sum:
            return order.gather(1, first), best, acoustic.gather(1, first)

        def total(values: Tensor) -> Tensor:
            highest = none.scatter_reduce(1, groups, values, "amax")
            relative = torch.where(values > -torch.inf, (values - highest.gather(1, groups)).exp(), 0.0)
            sums = highest + torch.zeros_like(none).scatter_add(1, groups, relative).log()
            return sums.nan_to_num(nan=-torch.inf, neginf=-torch.inf)

        return order.gather(1, first), total(scores), total(acoustic.masked_fill(scores == -torch.inf, -torch.inf))

    def merge_prefixes(self, beam: Beam, said: Said) -> tuple[Beam, list[Step]]:
        """Let hypotheses that are another one and a token gain what that gives them at this frame; shorter ones first."""
        num_beams = self.settings.num_beams
        is_parent = (
            (beam.parent_hashes[..., None] == beam.hashes[:, None])
            & (beam.sizes[..., None] == beam.sizes[:, None] + 1)
            & said.is_open[..., None]
            & said.is_open[:, None]
        )
        has_parent, parents = is_parent.max(-1)
        # How many shorter ones lead here.
        levels = torch.zeros_like(beam.sizes)
        for _ in range(num_beams - 1):
            levels = torch.where(has_parent, levels.gather(1, parents) + 1, 0)
        tokens = beam.last_tokens.clamp(min=0)
        rows, steps = self.rows, []
        gains, acoustic_gains = (values[rows, parents, tokens].double() for values in (said.fused, said.log_probs))
        scores, acoustic = beam.scores, beam.acoustic_scores
        # A way by a parent that has changed its own way at this frame is one step more.
        depths = torch.zeros_like(levels)
        for level in range(1, num_beams):
            gaining = has_parent & (levels == level)
            score = torch.where(gaining, scores.gather(1, parents) + gains, -torch.inf)
            of_model = torch.where(gaining, acoustic.gather(1, parents) + acoustic_gains, -torch.inf)
            better = score > scores
            depths = torch.where(better, depths.gather(1, parents) + 1, depths)
            if self.settings.log_sum:
                scores = torch.logaddexp(scores, score)
                acoustic = torch.where(gaining, torch.logaddexp(acoustic, of_model), acoustic)
            else:
                scores, acoustic = torch.where(better, score, scores), torch.where(better, of_model, acoustic)
        for depth in range(1, num_beams):
            moved = depths == depth
            links = torch.where(moved, parents, self.places)
            confidences = said.confidences.gather(1, links)
            steps.append(Step(links, torch.where(moved, tokens, STILL), torch.zeros_like(links), confidences))
        return beam._replace(scores=scores, acoustic_scores=acoustic), steps

    def predicted(self, beam: Beam, parents: Tensor, labels: Tensor, gets_token: Tensor) -> tuple[Tensor, State]:
        flat = (self.rows * parents.shape[1] + parents).flatten()
        olds = tuple(part[flat] for part in (beam.predictions, *beam.state))
        tokens = torch.where(gets_token, labels, self.model.blank_id).flatten()
        prediction, state = self.model.predict(tokens, olds[1:])
        found = tuple(torch.empty_like(old) for old in olds)
        replace_where(gets_token.flatten(), found, (prediction, *state), olds)
        return found[0], found[1:]

    def followed(self, beam: Beam, parents: Tensor, labels: Tensor, gets_token: Tensor) -> tuple[Tensor, Tensor]:
        index = parents[..., None].expand(-1, -1, beam.lm_states.shape[2])
        states, scores = beam.lm_states.gather(1, index), beam.lm_scores.gather(1, index)
        if states.shape[2]:
            tokens = torch.where(gets_token & (labels < min(self.vocab_size, self.model.vocab_size)), labels, -1)
            tokens = tokens.to(torch.int32)[..., None].expand_as(states)
            gained, targets = torch.ops.hf_ngpulm.step(
                list(self.automaton), states.flatten(), tokens.flatten(), self.vocab_size, self.engine
            )
            states, scores = targets.view(states.shape), scores + gained.view(scores.shape)
        return states, scores


def search_kind(engine: str, device: torch.device, settings: BeamSettings) -> type[Search]:
    """Return the search of an engine: with kernels on a GPU, unless beams are large, else with torch's operations."""
    if engine_name(engine, device) != "gpu":
        return Search
    kernels = importlib.import_module(f"{__package__}.gpu")
    beta = settings.aes_beta if settings.strategy == "aes" else 0
    candidates = settings.num_beams * (settings.num_beams + beta + 1)
    return kernels.Search if candidates <= kernels.MOST_CANDIDATES else Search


def beam_search(
    model: TransducerModel,
    frames: Tensor,
    lengths: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    ilm_weights: Tensor,
    vocab_size: int,
    settings: BeamSettings,
    confidence: str | None = None,
    engine: str = "auto",
    kept: Kept | None = None,
) -> BeamHypotheses:
    rows, longest = grown(frames.shape[0], 1), grown(frames.shape[1], 64)
    key = (
        "beam", rows, longest, states.shape[1], vocab_size, settings, confidence, engine, frames.shape[2], frames.dtype,
        frames.device, id(model),
    )  # fmt: skip
    weighed, kind = (*(automaton if states.shape[1] else ()), *model.parameters()), search_kind(engine, frames.device, settings)
    of = (model, frames, rows, longest, automaton, states.shape[1], vocab_size, settings, confidence, engine)
    with recalled(kept, key, weighed, lambda: kind(*of)) as search:
        search.load(frames, lengths, states, weights, ilm_weights)
        search.run()
        return search.found()


def _highest(values: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the highest single-precision numbers in double precision, and their places; of equal ones the first come first."""
    bits = torch.where(values == 0.0, 0.0, values).view(torch.int32).to(torch.int64)  # -0 is 0
    keys = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32) - torch.arange(values.shape[-1], device=values.device)
    places = keys.topk(most, -1).indices
    return values.gather(-1, places).double(), places


def _extend_hash(hashes: Tensor, tokens: Tensor) -> Tensor:
    mixed = (hashes + tokens + 1) * MIX + ADD
    return mixed ^ (mixed >> 29)
