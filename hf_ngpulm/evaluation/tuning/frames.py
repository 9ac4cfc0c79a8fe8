"""Sweeps of decoders over frames: CTC models' logits, and what transducers' encoders say."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...decoding.ctc import CTCDecoder
from ...decoding.graph import GraphDecoder
from ...decoding.transducer import TransducerDecoder
from ...search.networks.model import TransformersTransducer
from .outputs import KeptTensors
from .sweeps import LONGEST, Settings, Sweep
from .utterances import Utterance

# Rows of a batch, and numbers of their frames together, that are decoded at once.
MOST_ROWS, MOST_NUMBERS = 256, 1 << 26


class FrameSweep(Sweep):
    """Of a decoder of frames.

    Args:
        decoder: it.
        pipeline: what makes frames of audio; without one the dataset must have them.
    """

    field: ClassVar[str]  # what a dataset has them as
    of_batch: ClassVar[tuple[str, ...]] = ()  # weights that are the same for all rows of a batch

    def __init__(self, kept: KeptTensors, batch_size: int, decoder: Any, pipeline: Any = None) -> None:
        super().__init__(kept, batch_size)
        self.decoder = copy.copy(decoder)
        self.decoder.options = replace(decoder.options, confidence=None)
        self.pipeline = pipeline
        self._places: list[int] = []  # of each utterance's frames among what is kept

    @property
    def fusion(self) -> Any:
        return self.decoder.fusion

    @property
    def model(self) -> Any:
        return None if self.pipeline is None else self.pipeline.model

    def search(self) -> dict[str, Any]:
        return self.decoder.options.search()

    def hold(self, utterances: Iterable[Utterance]) -> Iterator[Utterance]:
        rest = iter(utterances)
        first = next(rest, None)
        if first is None:
            return
        rest = chain([first], rest)
        if first.outputs(self.field) is None:
            yield from self._hold_audio(rest)
            return
        for utterance in rest:
            frames = utterance.outputs(self.field)
            if frames is None:
                raise ValueError(f"number {utterance.number} of the dataset has no {self.field}, though those before it have")
            self._places.append(self.kept.add(frames))
            yield utterance

    def _hold_audio(self, utterances: Iterator[Utterance]) -> Iterator[Utterance]:
        if self.pipeline is None:
            raise ValueError(
                f"the dataset has no {self.field}, and a {type(self.decoder).__name__} alone can't make them of audio: "
                "pass a pipeline in its place"
            )
        rate = self.pipeline.feature_extractor.sampling_rate
        waiting: list[tuple[Utterance, bool]] = []  # handed to the model; whether there is any audio

        def recordings() -> Iterator[dict[str, Any]]:
            for utterance in utterances:
                samples = utterance.samples(rate)
                waiting.append((utterance, len(samples) > 0))
                if len(samples):
                    yield {"raw": samples, "sampling_rate": rate}

        def done(frames: Tensor | None) -> Iterator[Utterance]:
            while waiting and not (waiting[0][1] and frames is None):
                utterance, heard = waiting.pop(0)
                self._places.append(self.kept.add(frames if heard and frames is not None else torch.empty(0, 0)))
                yield utterance
                if heard:
                    frames = None

        cut = self.pipeline._preprocess_params.get("chunk_length_s")
        for is_long, some in groupby(recordings(), lambda recording: len(recording["raw"]) > LONGEST * rate):
            for frames in self.pipeline.frames(some, self.batch_size, chunk_length_s=cut or (LONGEST if is_long else 0)):
                yield from done(frames)
        yield from done(None)

    def decode(self, numbers: Sequence[int], settings: Sequence[Settings]) -> Iterator[tuple[int, int, str]]:
        shapes = {number: self.kept.shape(self._places[number]) for number in numbers}
        for number in numbers:
            if not shapes[number][0]:  # nothing to hear
                yield from ((number, i, "") for i in range(len(settings)))
        ordered = sorted((number for number in numbers if shapes[number][0]), key=lambda number: shapes[number])
        for group in self._together(settings):
            rows = [(number, i) for number in ordered for i in group]
            while rows:
                width = shapes[rows[0][0]].numel()
                count = 0
                while count < min(len(rows), MOST_ROWS):
                    width = max(width, shapes[rows[count][0]].numel())
                    if count and (count + 1) * width > MOST_NUMBERS:
                        break
                    count += 1
                batch, rows = rows[:count], rows[count:]
                yield from ((*row, text) for row, text in zip(batch, self._texts(batch, settings)))

    def _together(self, settings: Sequence[Settings]) -> list[list[int]]:
        """Return numbers of settings that can share a batch."""
        groups: dict[tuple[float, ...], list[int]] = {}
        for i, setting in enumerate(settings):
            groups.setdefault(tuple(setting[name] for name in self.of_batch if name in setting), []).append(i)
        return list(groups.values())

    def _texts(self, rows: list[tuple[int, int]], settings: Sequence[Settings]) -> list[str]:
        """Return the transcripts of utterances with settings, given the numbers of both."""
        numbers = list(dict.fromkeys(number for number, _ in rows))
        each = [self.kept[self._places[number]] for number in numbers]
        device = self._device()
        padded = torch.nn.utils.rnn.pad_sequence(each, batch_first=True).to(device)
        places = {number: place for place, number in enumerate(numbers)}
        which = torch.tensor([places[number] for number, _ in rows], device=device)
        lengths = torch.tensor([len(frames) for frames in each], device=device)[which]
        weights: dict[str, Any] = {
            name: torch.tensor([settings[i][name] for _, i in rows], dtype=torch.float32, device=device)
            for name in settings[0]
            if name not in self.of_batch
        }
        weights |= {name: settings[rows[0][1]][name] for name in settings[0] if name in self.of_batch}
        decoder = self.decoder.select([number for number, _ in rows])
        frames = padded if len(numbers) == len(rows) else padded[which]
        return [n_best[0].text for n_best in decoder.with_weights(**weights).decode(frames, lengths)]

    def _device(self) -> torch.device:
        if self.pipeline is not None:
            return self.pipeline.device
        return self.fusion.models[0].device if self.fusion.models else torch.device("cpu")


class CTCSweep(FrameSweep):
    """Of a `CTCDecoder`."""

    weights = ("lm_weight", "phrase_weight", "beta")
    field = "logits"
    decoder: CTCDecoder

    def standing(self) -> dict[str, Any]:
        fusion = self.decoder.fusion
        found = {"lm_weight": fusion.weight, "phrase_weight": fusion.phrase_weight}
        return found | ({"beta": self.decoder.options.beta} if self.decoder.options.num_beams > 1 else {})

    def _without_beta(self) -> str | None:
        return None if self.decoder.options.num_beams > 1 else "it is a bonus of beam search: pass num_beams=8, or so, too"


class GraphSweep(FrameSweep):
    """Of a `GraphDecoder`, whose `phrase_weight` is the discount of phrases without one of their own."""

    weights = ("lm_weight", "phrase_weight", "beta")
    field = "logits"
    decoder: GraphDecoder

    @property
    def phrases(self) -> Any:
        return self.decoder.phrases

    def standing(self) -> dict[str, Any]:
        decoder = self.decoder
        return {"lm_weight": decoder.fusion.weight, "phrase_weight": decoder.contexts.discount, "beta": decoder.options.beta}

    def _without_beta(self) -> str | None:
        return None


class TransducerSweep(FrameSweep):
    """Of a `TransducerDecoder`. The internal LM has one weight for a batch: settings that share it are decoded at once."""

    weights = ("lm_weight", "phrase_weight", "ilm_weight")
    of_batch = ("ilm_weight",)
    field = "encoder_hidden_states"
    decoder: TransducerDecoder

    @property
    def model(self) -> Any:
        return self.decoder.model.model if isinstance(self.decoder.model, TransformersTransducer) else None

    def standing(self) -> dict[str, Any]:
        return {
            "lm_weight": self.fusion.weight,
            "phrase_weight": self.fusion.phrase_weight,
            "ilm_weight": self.decoder.options.ilm_weight,
        }

    def _device(self) -> torch.device:
        return next((parameter.device for parameter in self.decoder.model.parameters()), super()._device())
