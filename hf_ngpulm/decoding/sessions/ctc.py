"""Sessions of CTC models: many streams, or the rows of a batch, each in a slot."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...common.batches import packed_frames
from ...engines.choice import engine_name
from ...fusion.fusion import RowModels, settled, widened
from ...lexicon.lazy_search import LazySearch
from ...search import ctc_beam as beam
from ...search import ctc_greedy as greedy
from ...search.confidence import frame_confidence
from ...search.ctc_beam import cpu as native_beam
from ...search.ctc_beam.ranking import prefix_scores, rank, with_joined_texts
from ...search.ctc_graph import GraphState
from ...search.ctc_greedy import cpu as native_greedy
from ..hypotheses import Hypothesis
from .session import Found, Slots, Switch, given_back

if TYPE_CHECKING:
    from ..ctc import CTCDecoder
    from ..graph import GraphDecoder

State = TypeVar("State", beam.BeamState, GraphState)
# What going on with a label costs under the rule "stay", per unit of LM weight: about what the average token costs in an LM.
# Without it staying would look cheap beside any new token, which the LM charges for.
STAY_COST = 3.0
# Frames that are searched before what all hypotheses have in common is put aside.
BLOCK_FRAMES = 256


class CTCSlots(Slots):
    """Share what greedy search and beams have in common."""

    goes_on = True
    block_frames: int | None = None  # that are searched at a time
    decoder: CTCDecoder | GraphDecoder

    def __init__(self, decoder: CTCDecoder | GraphDecoder, models: RowModels, num_beams: int) -> None:
        super().__init__(decoder, models, num_beams)
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
        confidences = confidences_of(logits, torch.from_numpy(lengths), self.decoder.options.confidence)
        found = self.search(rows, models, logits, torch.from_numpy(lengths).to(logits.device))
        bad_frames = found[-1].bad_frames.cpu().numpy()
        good = bad_frames < 0
        kept = slots, lengths, confidences
        if not good.all():  # slots with a broken frame stay as they were
            kept = slots[good], lengths[good], confidences[good]
            places = torch.from_numpy(np.flatnonzero(good)).to(logits.device)
            found = tuple(type(parts)(*(part[places] for part in parts)) for parts in found)
            rows = torch.from_numpy(kept[0]).to(logits.device)
        self.accept(kept[0], rows, found, *kept[1:])
        self.frames[slots] += np.where(good, lengths, 0)
        return np.where(good, -1, self.frames[slots] + bad_frames)

    @abstractmethod
    def search(self, rows: Tensor | slice, models: RowModels, logits: Tensor, lengths: Tensor) -> tuple[Any, ...]:
        """Decode frames `[N, T, C]` of some slots, of which nothing changes yet.

        Returns:
            What `accept` takes: where the search stands, if that is kept by itself, and what happened, `bad_frames` with it.
        """

    @abstractmethod
    def accept(self, slots: np.ndarray, rows: Tensor | slice, found: Any, lengths: np.ndarray, confidences: np.ndarray) -> None:
        """Keep what some slots have come to, and with it what their hypotheses consist of now."""

    def finish(self, slot: int) -> list[Hypothesis]:
        return [hypothesis for hypothesis in super().finish(slot) if hypothesis.score > -np.inf]


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
        self.lm_scores[rows, -1] += given_back(self.models, rows, self.states[rows, None], self.decoder.options.engine)[:, 0]
        self.states[rows, -1] = contexts.states[:, 0].to(self.states.device)
        super().switch(slots, contexts)

    def begin(self, slot: int) -> None:
        super().begin(slot)
        self.states[slot] = self.models.states[slot]
        self.before[slot] = self.last[slot] = self.decoder.blank_id
        self.acoustic_scores[slot] = 0.0
        self.lm_scores[slot] = 0.0

    def search(
        self, rows: Tensor | slice, models: RowModels, logits: Tensor, lengths: Tensor
    ) -> tuple[greedy.GreedyLabels, ...]:
        return (label_frames(self.decoder, models, self.states[rows], self.before[rows], logits, lengths),)

    def accept(
        self, slots: np.ndarray, rows: Tensor | slice, found: tuple[Any, ...], lengths: np.ndarray, confidences: np.ndarray
    ) -> None:
        (result,) = found
        self.states[rows], self.before[rows] = result.states, result.before
        self.acoustic_scores[rows] += result.acoustic_scores
        self.lm_scores[rows] += result.lm_scores
        self.history.label(
            slots, result.labels.cpu().numpy(), lengths, self.frames, self.last, self.sums, confidences, self.decoder.blank_id
        )

    def live(self) -> np.ndarray:
        return np.ones((len(self.frames), 1), dtype=np.bool_)

    def still_open(self, slots: np.ndarray) -> np.ndarray:
        return self.last[slots] != self.decoder.blank_id

    def scores(self) -> Tensor:
        return self.acoustic_scores + (self.models.weights * self.lm_scores).sum(1)

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(slots), dtype=np.int64), self.scores().cpu().numpy()[slots]

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        given = (self.scores()[rows, None], self.lm_scores[rows, None], self.states[rows, None])
        scores, of_lms, of_phrases = self.models.of(rows).at_end(*given, False, self.decoder.options.engine)
        columns = torch.stack([scores[:, 0], self.acoustic_scores[rows], of_lms[:, 0], of_phrases[:, 0]], 1)
        return [[Found(0, values)] for values in columns.tolist()]


class FramesSlots(CTCSlots, Generic[State]):
    """Share what searches have in common that keep several hypotheses for each slot, as rows `[S, K]` of tensors."""

    state: State
    block_frames = BLOCK_FRAMES

    def __init__(self, decoder: CTCDecoder | GraphDecoder, models: RowModels, num_beams: int) -> None:
        super().__init__(decoder, models, num_beams)
        self.num_beams = num_beams
        self.state = self.initial(models.states)

    @abstractmethod
    def initial(self, states: Tensor) -> State:
        """Return the state before the first frame, with automata in the states `[N, M]`."""

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
        back = given_back(self.models, rows, state.lm_states[rows], self.decoder.options.engine)
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

    def search(self, rows: Tensor | slice, models: RowModels, logits: Tensor, lengths: Tensor) -> tuple[State, Any]:
        state = type(self.state)(*(part[rows] for part in self.state))
        return self.search_frames(rows, models, state, logits, lengths)

    def accept(
        self, slots: np.ndarray, rows: Tensor | slice, found: tuple[Any, ...], lengths: np.ndarray, confidences: np.ndarray
    ) -> None:
        state, frames = found
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
        super().__init__(decoder, models, decoder.options.num_beams)

    def initial(self, states: Tensor) -> beam.BeamState:
        return beam.initial_state(self.num_beams, states)

    def search_frames(
        self, rows: Tensor | slice, models: RowModels, state: beam.BeamState, logits: Tensor, lengths: Tensor
    ) -> tuple[beam.BeamState, beam.BeamFrames]:
        return search_frames(self.decoder, models, state, logits, lengths)

    def _ended(self, state: beam.BeamState) -> beam.BeamState:
        return with_joined_texts(state) if self.decoder.options.merge == "text" else state

    def live(self) -> np.ndarray:
        return (torch.maximum(self.state.blank_scores, self.state.token_scores) > -torch.inf).cpu().numpy()

    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores = prefix_scores(self._ended(self.state))[1].cpu().numpy()[slots]
        last_tokens, parent_hashes = (part.cpu().numpy()[slots] for part in (self.state.last_tokens, self.state.parent_hashes))
        places = np.lexsort((parent_hashes, last_tokens, -scores))[:, 0]  # of those that score the same the first
        return places, scores[np.arange(len(slots)), places]

    def ranked(self, rows: slice, score_eos: bool, most: int) -> list[list[Found]]:
        state = self._ended(beam.BeamState(*(part[rows] for part in self.state)))
        found = rank(self.models.of(rows), state, most, score_eos, self.decoder.options.engine)
        return [
            [Found(*both) for both in zip(*row) if both[1][0] > -np.inf]
            for row in zip(found.places.tolist(), found.scores.tolist())
        ]


def label_frames(
    decoder: CTCDecoder, models: RowModels, states: Tensor, before: Tensor, logits: Tensor, lengths: Tensor
) -> greedy.GreedyLabels:
    """Return the class that greedy search gives each frame, before blanks and repeats are dropped.

    Args:
        states: int32 `[B, M]`, of the rows' automata.
        before: int32 `[B, 2]`, see `hf_ngpulm.search.ctc_greedy`.
    """
    if states.shape[1]:

        def search(models: RowModels) -> greedy.GreedyLabels:
            arguments = (
                logits, lengths, states, models.weights, STAY_COST * models.lm_weights, before, decoder.blank_id,
                models.vocab_size, decoder.options.repeats,
            )  # fmt: skip
            if models.composing is None or engine_name(decoder.options.engine, logits.device) != "cpu":
                return greedy.ctc_greedy(list(models.tensors), *arguments, decoder.options.engine)
            return native_greedy.ctc_greedy(models.tensors, *arguments, models.composing)

        def replay(lazy: LazySearch, found: greedy.GreedyLabels) -> bool:
            goes_on = found.labels == torch.cat([before[:, :1], found.labels[:, :-1]], 1)
            tokens = found.labels.masked_fill(goes_on, -1)[..., None]
            return lazy.replay(states[:, None], None, tokens.cpu().numpy(), decoder.blank_id)

        return settled(models, search, replay)
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    labels = logits.argmax(dim=-1)
    best = log_probs.gather(2, labels[..., None])[..., 0]
    inside = torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
    bad = inside & ~torch.isfinite(best)
    first_bad = torch.where(bad.any(1), bad.int().argmax(1) if logits.shape[1] else 0, -1)
    return greedy.GreedyLabels(
        labels=torch.where(inside, labels, decoder.blank_id).to(torch.int32),
        acoustic_scores=torch.where(inside, best, 0.0).sum(dim=1),
        lm_scores=models.weights,
        states=states,
        bad_frames=first_bad.to(torch.int32),
        before=before,
    )


def search_frames(
    decoder: CTCDecoder, models: RowModels, state: beam.BeamState, logits: Tensor, lengths: Tensor
) -> tuple[beam.BeamState, beam.BeamFrames]:
    """Go on with a beam search over more frames."""
    options, hashes = decoder.options, decoder.text_hashes(logits.shape[2], logits.device)
    of_tokens = (decoder.token_bonuses(models), unscored(models), decoder.blank_id, models.vocab_size)
    thresholds = (options.beam_threshold, options.blank_threshold)
    if models.lazy is not None and engine_name(options.engine, logits.device) == "cpu":
        return native_beam.ctc_beam(
            models.tensors, state, logits, lengths, models.weights, *of_tokens, *thresholds, hashes, models.lazy
        )  # fmt: skip

    def search(models: RowModels) -> tuple[beam.BeamState, beam.BeamFrames]:
        tensors = list(models.tensors)
        return beam.ctc_beam(
            tensors, state, logits, lengths, models.weights, *of_tokens, *thresholds, options.engine, hashes
        )  # fmt: skip

    def replay(lazy: LazySearch, found: tuple[beam.BeamState, beam.BeamFrames]) -> bool:
        return lazy.replay(state.lm_states, found[1].links.cpu().numpy(), found[1].labels.cpu().numpy())

    return settled(models, search, replay)


def confidences_of(logits: Tensor, lengths: Tensor, measure: str | None) -> np.ndarray:
    """Return the confidence of each frame, float32 `[B, T]`; 0 where there is padding, and without a measure."""
    # Where there is no padding, and on a GPU, where it costs less than taking rows apart.
    if measure is not None and (logits.device.type != "cpu" or (len(lengths) and int(lengths.min()) == logits.shape[1])):
        return frame_confidence(logits, measure).cpu().numpy()
    found = np.zeros(logits.shape[:2], dtype=np.float32)
    if measure is not None:
        frames = packed_frames(logits, lengths)[1]
        inside = np.arange(logits.shape[1]) < lengths.cpu().numpy()[:, None]
        found[inside] = frame_confidence(frames[None], measure)[0].numpy()
    return found


def unscored(models: RowModels) -> Tensor:
    """Return what a class that no LM scores adds to the score of a prefix, float32 `[B]`.

    It counts as one of V tokens that are equally likely: otherwise it would come for free.
    """
    return -math.log(max(models.vocab_size, 1)) * models.lm_weights
