"""Sweep the settings of attention decoders. For each setting, the decoder generates again, but the encoder runs only once."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...fusion.fusion import Fusion
from ...generation.internal import InternalLM
from ...pipelines import Seq2SeqNGramPipeline
from ..recognition import LONGEST, beams_of, cut_where_quiet
from .dataset import KeptTensors, TuningUtterance
from .sweeps import OF_RESCORER, Settings, Sweep

# The most sequences (rows times beams) that are generated at once.
MOST_SEQUENCES = 256


class AttentionSweep(Sweep):
    """Sweeps the settings of an encoder-decoder's pipeline.

    Each recording is preprocessed and encoded alone, so its transcript equals the pipeline's transcript of this recording
    alone. A batch has a row for each recording and setting. The recordings of a batch have features of the same shape.
    """

    lm_grid = "0:1:0.1"
    ilm_grid = "0:0.5:0.25"

    def __init__(self, kept: KeptTensors, batch_size: int, pipeline: Seq2SeqNGramPipeline) -> None:
        self.pipeline: Any = pipeline
        self.processor = pipeline._forward_params.get("ngram_decoder")  # None if there is only a rescorer
        fusion = Fusion(None, 0.0, None, 1.0, pipeline.tokenizer) if self.processor is None else self.processor.fusion
        super().__init__(kept, batch_size, fusion, pipeline.model)
        with suppress(ValueError):  # the model has no internal LM that could be subtracted
            InternalLM(pipeline.model)
            if self.fusion.models:
                self.standing["ilm_weight"] = self.processor.options.ilm_weight
        self.second_pass = pipeline._forward_params.get("second_pass")
        if self.second_pass is not None:
            self.standing |= dict(zip(OF_RESCORER, self.second_pass[1:]))
        self.encoder = _RememberingEncoder(pipeline.model, kept)
        settings, usual = pipeline._ngram_settings or {}, {"unscored": "kept", "score_eos": None, "prompt_context": False}
        self.num_beams = beams_of(pipeline)
        self.search = {"num_beams": self.num_beams}
        self.search |= {name: settings[name] for name, value in usual.items() if settings.get(name, value) != value}
        self._pieces: list[list[dict[str, Any]]] = []  # the model's inputs for each piece of each recording
        self._parts: list[list[int]] = []  # for each recording, the number of pieces in each of its parts

    def hold(self, utterances: Iterable[TuningUtterance]) -> Iterator[TuningUtterance]:
        rate = self.pipeline.feature_extractor.sampling_rate
        params = {name: value for name, value in self.pipeline._preprocess_params.items() if name != "per_item"}
        for utterance in utterances:
            samples = utterance.samples(rate)
            whole = self.pipeline.type == "seq2seq_whisper" or len(samples) <= LONGEST * rate
            parts = [samples] if whole else cut_where_quiet(samples, LONGEST, rate)
            of_parts = [
                list(self.pipeline.preprocess({"raw": part, "sampling_rate": rate}, **params)) for part in parts if len(part)
            ]
            pieces = [piece for part in of_parts for piece in part]
            self._parts.append([len(part) for part in of_parts])
            self._pieces.append([{name: self._held(value) for name, value in piece.items()} for piece in pieces])
            yield utterance

    def _held(self, value: Any) -> Any:
        return _Held(self.kept.add(value), tuple(value.shape)) if isinstance(value, Tensor) else value

    def decode(self, numbers: Sequence[int], settings: Sequence[Settings]) -> Iterator[tuple[int, int, str]]:
        outputs: dict[tuple[int, int], list[Any]] = {}  # of the pieces of a row; None for a piece that isn't decoded yet
        rows = []
        for number, i in itertools.product(numbers, range(len(settings))):
            pieces = range(len(self._pieces[number]))
            if not pieces:  # no audio
                yield number, i, ""
            outputs[number, i] = [None for _ in pieces]
            rows += [(number, i, place) for place in pieces]
        rows.sort(key=lambda row: (self._shapes(row), row[0], row[2], row[1]))
        for _, alike in itertools.groupby(rows, self._shapes):
            while batch := list(itertools.islice(alike, max(MOST_SEQUENCES // self.num_beams, 1))):
                for (number, i, place), output in zip(batch, self._outputs(batch, settings)):
                    outputs[number, i][place] = output
                    if all(output is not None for output in outputs[number, i]):
                        yield number, i, self._text(outputs.pop((number, i)), self._parts[number])

    def _text(self, outputs: list[Any], parts: list[int]) -> str:
        following, params = iter(outputs), self.pipeline._postprocess_params
        texts = [self.pipeline.postprocess(list(itertools.islice(following, count)), **params)["text"] for count in parts]
        return texts[0] if len(texts) == 1 else " ".join(filter(None, map(str.strip, texts)))

    def _shapes(self, row: tuple[int, int, int]) -> list[tuple[str, tuple[int, ...]]]:
        number, _, place = row
        return sorted((name, value.shape) for name, value in self._pieces[number][place].items() if isinstance(value, _Held))

    def _outputs(self, rows: list[tuple[int, int, int]], settings: Sequence[Settings]) -> list[dict[str, Any]]:
        """Return the model's outputs for a batch of pieces of audio, one dictionary for each row. `rows`: for each row, the
        utterance's number, the setting's index, and the index of the piece in the utterance.
        """
        pieces = [self._pieces[number][place] for number, _, place in rows]
        read = cache(self.kept.__getitem__)
        inputs: dict[str, Any] = {}
        for name, value in pieces[0].items():
            values = [piece[name] for piece in pieces]
            inputs[name] = torch.cat([read(held.number) for held in values]) if isinstance(value, _Held) else values
        weights = {
            ("weight" if name == "lm_weight" else name): torch.tensor([settings[i][name] for _, i, _ in rows])
            for name in settings[0]
        }
        of_rescorer = [weights.pop(name) for name in OF_RESCORER if name in weights]
        params = dict(self.pipeline._forward_params)
        if self.processor is not None:
            params["ngram_decoder"] = self.processor.select([number for number, _, _ in rows]).with_weights(**weights)
        if of_rescorer:
            params["second_pass"] = self.second_pass._replace(weight=of_rescorer[0], word_bonus=of_rescorer[1])
        with self.encoder.in_place():
            outputs = self.pipeline.forward(inputs, **params)
        return [_of_row(outputs, row, len(rows)) for row in range(len(rows))]


class _Held(NamedTuple):
    """Hold the number and shape of a tensor in `KeptTensors`."""

    number: int
    shape: tuple[int, ...]


def _of_row(outputs: dict[str, Any], row: int, rows: int) -> dict[str, Any]:
    """Return a row of each output of a forward pass. An output without rows stays whole. `rows`: the batch's number of rows."""
    of_row = {}
    for name, value in outputs.items():
        if isinstance(value, Tensor) and len(value) == rows:
            of_row[name] = value[row : row + 1]
        else:
            of_row[name] = value[row] if isinstance(value, list | tuple) and len(value) == rows else value
    return of_row


class _RememberingEncoder:
    """Run a model's encoder, and cache the outputs. The key in the cache is the content of the input row.

    Language detection, fallbacks and all settings share the cached output of the same audio. Rows are encoded one by one, so
    that the output of a row doesn't depend on the other rows in the batch.
    """

    def __init__(self, model: Any, kept: KeptTensors) -> None:
        self.kept = kept
        self.encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else None
        self._cached: dict[bytes, Any] = {}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the `with` block, replace the encoder's `forward` by a function that uses the cache."""
        if self.encoder is None:
            yield
            return
        own = self.encoder.forward
        shadowed = "forward" in vars(self.encoder)  # another library has replaced it already

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._remembered(own, args, kwargs)

        self.encoder.forward = forward
        try:
            yield
        finally:
            if shadowed:
                self.encoder.forward = own
            else:
                del self.encoder.forward

    def _remembered(self, encode: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        others = {name: value for name, value in arguments.items() if not isinstance(value, Tensor)}
        rows = {len(value) if value.dim() else -1 for value in tensors.values()}
        plain = all(isinstance(value, str | int | float | None) for value in others.values())
        if len(rows) != 1 or -1 in rows or not plain:
            return encode(*args, **kwargs)
        encoded: list[dict[Any, Tensor]] = []
        kind: Any = None
        for row in range(rows.pop()):
            inputs = {name: value[row : row + 1] for name, value in tensors.items()}
            key = _digest(inputs, others)
            if key not in self._cached:
                each = {**inputs, **others}
                output = encode(*(each[place] for place in range(len(args))), **{name: each[name] for name in kwargs})
                parts = dict(output.items()) if hasattr(output, "items") else None
                if parts is None or not all(isinstance(part, Tensor) and len(part) == 1 for part in parts.values()):
                    return encode(*args, **kwargs)  # the output has entries that can't be cached
                self._cached[key] = (type(output), {name: self.kept.add(part) for name, part in parts.items()})
            kind, numbers = self._cached[key]
            device = next(iter(tensors.values())).device
            encoded.append({name: self.kept[number].to(device) for name, number in numbers.items()})
        return kind(**{name: torch.cat([row[name] for row in encoded]) for name in encoded[0]})


def _digest(tensors: dict[Any, Tensor], others: dict[Any, Any]) -> bytes:
    digest = hashlib.blake2b(repr(sorted(others.items(), key=str)).encode(), digest_size=16)
    for name, value in sorted(tensors.items(), key=lambda pair: str(pair[0])):
        value = value.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.digest()
