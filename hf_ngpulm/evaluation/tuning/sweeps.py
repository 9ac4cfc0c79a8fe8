"""Decode a model's stored outputs with many settings at once. A batch has a row for each pair of an utterance and a setting.

The outputs are frames: logits of CTC models, or encoder frames of transducers.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
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
from ..recognition import LONGEST
from .dataset import KeptTensors, TuningUtterance

Settings = dict[str, float]

OF_RESCORER = {"rescorer_weight": "0:1:0.2", "word_bonus": "0:4:1"}  # weights of a rescorer, and their grids
# The most rows in a batch, and the most numbers in the frames of a batch.
MOST_ROWS, MOST_NUMBERS = 256, 1 << 26


class Sweep(ABC):
    """Decodes the same utterances with several settings.

    `hold` runs the model over the utterances once, and stores the outputs. Then `decode` can be called any number of times. A
    transcript doesn't depend on the other utterances and settings in the batch.

    Attributes:
        kept: the stored outputs of the model.
        batch_size: number of recordings in a batch of the model.
        fusion: the decoder's language models and phrases.
        phrases: one context for all utterances, a list with a context for each utterance, or None.
        model: the recogniser; None if it isn't known.
        standing: the decoder's weights. If a rule computes a weight, the weight is None.
        search: settings of the search, without weights. The names are defined in `hf_ngpulm.config.tuned`.
    """

    # Default grids of the language model, the phrases and the internal LM. Transducers need no grid for the internal LM,
    # because their rule (0.7 times the LM's weight) gives the same error rates as tuning.
    lm_grid: ClassVar[str] = "0:2:0.2"
    phrase_grid: ClassVar[str] = "0:3:0.5"
    ilm_grid: ClassVar[str | None] = None
    # Untuned weights that a result records even if they are 0, because their default isn't 0.
    recorded: ClassVar[tuple[str, ...]] = ("lm_weight",)
    without_beta: ClassVar[str] = "it is a bonus of beam search for CTC models"

    def __init__(self, kept: KeptTensors, batch_size: int, fusion: Any, model: Any) -> None:
        self.kept, self.batch_size = kept, batch_size
        self.fusion, self.phrases, self.model = fusion, fusion.phrases, model
        self.standing: dict[str, Any] = {"lm_weight": fusion.weight, "phrase_weight": fusion.phrase_weight}
        if fusion.source is not None:
            self.standing["source_weight"] = fusion.source_weight
        self.search: dict[str, Any] = {}

    @abstractmethod
    def hold(self, utterances: Iterable[TuningUtterance]) -> Iterator[TuningUtterance]:
        """Run the model over utterances, and store the outputs. Yield each utterance when its outputs are stored."""

    @abstractmethod
    def decode(self, numbers: Sequence[int], settings: Sequence[Settings]) -> Iterator[tuple[int, int, str]]:
        """Decode utterances with several settings of the same weights.

        Args:
            numbers: the utterances' numbers. `hold` yields utterance 0 first.
            settings: the weights of each setting, by name.

        Yields:
            The number of an utterance, the index of a setting, and the transcript, in any order.
        """

    def usual_grids(self) -> dict[str, str]:
        """Return the default grids of the decoder's weights. If a weight differs between utterances, the weight has no grid."""
        grids = {"lm_weight": self.lm_grid, "phrase_weight": self.phrase_grid, **OF_RESCORER}
        if self.ilm_grid is not None:
            grids["ilm_weight"] = self.ilm_grid
        used = {"lm_weight": bool(self.fusion.models), "phrase_weight": self.phrases is not None}
        used = {name: used.get(name, name in self.standing) for name in grids}
        return {name: grids[name] for name in grids if used[name] and not isinstance(self.standing[name], Tensor)}

    def check(self, names: Iterable[str]) -> None:
        """Raise ValueError if a weight in `names` has no effect, because the decoder lacks a model, phrases or a search."""
        for name, has_effect, why in (
            ("lm_weight", self.fusion.models, "there is no language model: pass lm= to the decoder or pipeline"),
            ("phrase_weight", self.phrases is not None, "there are no phrases: pass phrases= there too"),
            ("ilm_weight", "ilm_weight" in self.standing, "only transducers and attention decoders have an internal LM"),
            ("source_weight", "source_weight" in self.standing, "there is no source LM: pass source_lm= there too"),
            ("beta", "beta" in self.standing, self.without_beta),
            *((name, name in self.standing, "there is no rescorer: pass rescorer= there too") for name in OF_RESCORER),
        ):
            if name in names and not has_effect:
                raise ValueError(f"{name} can't be tuned: {why}")


class FrameSweep(Sweep):
    """Sweeps a decoder of frames. A pipeline computes the frames from audio, or the dataset contains the frames."""

    field: ClassVar[str]  # the dataset's field with the frames

    def __init__(self, kept: KeptTensors, batch_size: int, decoder: Any, pipeline: Any, model: Any) -> None:
        super().__init__(kept, batch_size, decoder.fusion, model)
        self.decoder = copy.copy(decoder)
        self.decoder.options = replace(decoder.options, confidence=None)
        self.search = decoder.options.search()
        if decoder.options.rescorer is not None:
            self.standing |= dict(zip(OF_RESCORER, decoder.options.second_pass[1:]))
        self.pipeline = pipeline
        models = self.fusion.models
        self.device = pipeline.device if pipeline is not None else models[0].device if models else torch.device("cpu")
        self._places: list[int] = []  # number of each utterance's frames in `kept`

    def hold(self, utterances: Iterable[TuningUtterance]) -> Iterator[TuningUtterance]:
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
                raise ValueError(f"number {utterance.number} of the dataset has no {self.field}, but earlier ones have")
            self._places.append(self.kept.add(frames))
            yield utterance

    def _hold_audio(self, utterances: Iterator[TuningUtterance]) -> Iterator[TuningUtterance]:
        if self.pipeline is None:
            raise ValueError(
                f"the dataset has no {self.field}, and a {type(self.decoder).__name__} can't compute them from audio: "
                "pass a pipeline instead"
            )
        rate = self.pipeline.feature_extractor.sampling_rate
        waiting: list[tuple[TuningUtterance, bool]] = []  # utterances passed to the model, and whether they have samples

        def recordings() -> Iterator[dict[str, Any]]:
            for utterance in utterances:
                samples = utterance.samples(rate)
                waiting.append((utterance, len(samples) > 0))
                if len(samples):
                    yield {"raw": samples, "sampling_rate": rate}

        def done(frames: Tensor | None) -> Iterator[TuningUtterance]:
            """Store `frames` for the next utterance with samples. Earlier utterances without samples get no frames."""
            while waiting and not (waiting[0][1] and frames is None):
                utterance, has_samples = waiting.pop(0)
                self._places.append(self.kept.add(frames if has_samples and frames is not None else torch.empty(0, 0)))
                yield utterance
                if has_samples:
                    frames = None

        cut = self.pipeline._preprocess_params.get("chunk_length_s")
        for is_long, some in groupby(recordings(), lambda recording: len(recording["raw"]) > LONGEST * rate):
            for frames in self.pipeline.frames(some, self.batch_size, chunk_length_s=cut or (LONGEST if is_long else 0)):
                yield from done(frames)
        yield from done(None)

    def decode(self, numbers: Sequence[int], settings: Sequence[Settings]) -> Iterator[tuple[int, int, str]]:
        shapes = {number: self.kept.shape(self._places[number]) for number in numbers}
        for number in numbers:
            if not shapes[number][0]:  # no audio
                yield from ((number, i, "") for i in range(len(settings)))
        ordered = sorted((number for number in numbers if shapes[number][0]), key=lambda number: shapes[number])
        rows = [(number, i) for number in ordered for i in range(len(settings))]
        while rows:
            width, count = 0, 0
            while count < min(len(rows), MOST_ROWS):
                width = max(width, shapes[rows[count][0]].numel())
                if count and (count + 1) * width > MOST_NUMBERS:
                    break
                count += 1
            batch, rows = rows[:count], rows[count:]
            yield from ((*row, text) for row, text in zip(batch, self._texts(batch, settings)))

    def _texts(self, rows: list[tuple[int, int]], settings: Sequence[Settings]) -> list[str]:
        """Return the transcript of each row. `rows`: for each row the utterance's number and the setting's index."""
        places: dict[int, int] = {}
        which = torch.tensor([places.setdefault(number, len(places)) for number, _ in rows], device=self.device)
        kept = [self.kept[self._places[number]] for number in places]
        padded = torch.nn.utils.rnn.pad_sequence(kept, batch_first=True).to(self.device)
        lengths = torch.tensor([len(frames) for frames in kept], device=self.device)[which]
        frames = padded if len(places) == len(rows) else padded[which]
        weights: dict[str, Any] = {}
        for name in settings[0]:
            values = [settings[i][name] for _, i in rows]
            weights[name] = torch.tensor(values, dtype=torch.float32, device=self.device)
        decoder = self.decoder.select([number for number, _ in rows]).with_weights(**weights)
        return [n_best[0].text for n_best in decoder.decode(frames, lengths)]


class CTCSweep(FrameSweep):
    """Sweeps settings of a `CTCDecoder` or `GraphDecoder`. In a graph, `phrase_weight` sets the default discount of phrases."""

    field = "logits"
    without_beta = "it is a bonus of beam search: also pass num_beams=, such as 8"

    def __init__(self, kept: KeptTensors, batch_size: int, decoder: CTCDecoder | GraphDecoder, pipeline: Any = None) -> None:
        super().__init__(kept, batch_size, decoder, pipeline, None if pipeline is None else pipeline.model)
        if isinstance(decoder, GraphDecoder):
            self.phrases = decoder.phrases
            self.standing |= {"phrase_weight": decoder.contexts.discount, "beta": decoder.options.beta}
        elif decoder.options.num_beams > 1:
            self.standing["beta"] = decoder.options.beta


class TransducerSweep(FrameSweep):
    """Sweeps settings of a `TransducerDecoder`."""

    recorded = ("lm_weight", "ilm_weight")
    field = "encoder_hidden_states"

    def __init__(self, kept: KeptTensors, batch_size: int, decoder: TransducerDecoder, pipeline: Any = None) -> None:
        model = decoder.model
        super().__init__(
            kept, batch_size, decoder, pipeline, model.model if isinstance(model, TransformersTransducer) else None
        )
        self.device = next((parameter.device for parameter in model.parameters()), self.device)
        self.standing["ilm_weight"] = decoder.options.ilm_weight
