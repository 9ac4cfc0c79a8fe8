"""Trained recognisers and what they hear: a CTC model's log-probabilities or an encoder's frames, and decoders of these.

A model is a folder or a Hub id of Transformers, or the name of a bundled one (`ctc`, `rnnt`, `tdt`, `canary`, ...). Encoders
run once; decoders are timed on what they gave, clips sorted by length, in batches.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpora
import measure
import numpy as np
import torch
from corpora import RATE, Clip
from torch import Tensor
from transformers import GenerationMixin

import hf_ngpulm.models
from hf_ngpulm import CTCDecoder, GraphDecoder, TransducerDecoder
from hf_ngpulm.decoding.families import encoded
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.language_model.loading import load_language_model
from hf_ngpulm.pipelines.seq2seq import SHORT

BUNDLED = measure.ROOT / "examples" / "models"
BATCH = 16
Batch = tuple[list[int], Tensor, Tensor]  # numbers of the clips, frames [B, T, ...], lengths [B]


class Recogniser:
    """A CTC model, a transducer, or a decoder with attention (`family`).

    Args:
        name: of a bundled model, or a folder or Hub id.
    """

    def __init__(self, name: str | Path, device: str = "cpu") -> None:
        import transformers

        source = BUNDLED / name if (BUNDLED / name).is_dir() else Path(name) if Path(name).is_dir() else name
        (architecture,) = transformers.AutoConfig.from_pretrained(source).architectures
        self.source, self.name, self.device = source, Path(name).name, device
        kind = getattr(transformers, architecture, None) or getattr(hf_ngpulm.models, architecture)
        self.model = kind.from_pretrained(source, dtype=torch.float32).eval().to(device)
        self.processor = transformers.AutoProcessor.from_pretrained(source)
        self.tokenizer = self.processor.tokenizer
        transducer = "transducer" if hasattr(self.model, "joint") else "attention"
        self.family = "CTC" if architecture.endswith("CTC") else transducer

    @property
    def is_tdt(self) -> bool:
        return hasattr(self.model.config, "durations")

    def lm(self, source: str | None) -> Any:
        """Return a language model for this model's tokens; None for None."""
        return source and load_language_model(source, self.tokenizer, self.device)

    def inputs(self, audio: list[np.ndarray]) -> dict[str, Tensor]:
        """Return what the model takes for some recordings."""
        extractor = self.processor.feature_extractor
        if extractor.sampling_rate != RATE:
            raise SystemExit(f"{self.name} hears {extractor.sampling_rate} Hz; benchmarks read audio at {RATE} Hz only")
        padded = {} if self.family == "attention" else {"padding": True}  # Whispers hear 30 s, whatever is said
        features = extractor(audio, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **padded)
        return {name: features[name].to(self.device) for name in (self.model.main_input_name, "attention_mask")}

    def encode(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Return what decoders are given for each row, `[T, ...]`: log-probabilities (CTC), or an encoder's frames."""
        if self.family == "attention":
            outputs = self.model.get_encoder()(**inputs)
            (states,), self.kind_of_outputs = outputs.last_hidden_state, type(outputs)  # it hears a clip at a time
            return [states]
        frames, lengths = encoded(self.model, inputs[self.model.main_input_name], inputs["attention_mask"])
        frames = torch.log_softmax(frames.float(), -1) if self.family == "CTC" else frames
        ends = [frames.shape[1]] * len(frames) if lengths is None else lengths.tolist()
        return [row[:end] for row, end in zip(frames, ends)]

    def outputs(self, states: Tensor, lengths: Tensor | None = None) -> Any:
        """Return what an encoder of a decoder with attention returns, anew: beams widen it in place."""
        given = {"last_hidden_state": states}
        if lengths is not None and "attention_mask" in self.kind_of_outputs.__dataclass_fields__:
            given["attention_mask"] = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
        return self.kind_of_outputs(**given)

    def hear(self, clips: list[Clip], at_once: int = BATCH, frames: Frames | None = None) -> Heard:
        """Return clips as this model hears them, so many at a time; with `frames`, what it makes of these."""
        rows: dict[int, Tensor] = {}
        with torch.inference_mode():
            if frames is not None and self.family != "attention":
                return Heard(self, clips, self._top([torch.from_numpy(frames[clip.path].astype(np.float32)) for clip in clips]))
            for numbers in by_length([clip.audio for clip in clips], 1 if self.family == "attention" else at_once):
                rows |= zip(numbers, self.encode(self.inputs([clips[number].audio for number in numbers])))
        return Heard(self, clips, [rows[number] for number in range(len(clips))])

    def _top(self, frames: list[Tensor]) -> list[Tensor]:
        """Return what a model on a frozen Whisper makes of Whisper's frames, `[T, D]` each."""
        subsampling, rows = self.model.encoder.subsampling, dict[int, Tensor]()
        subsampling.heard = lambda features, mask: features
        for numbers in by_length(frames, BATCH):
            _, padded, lengths = batch_of(frames, numbers)
            mask = (torch.arange(2 * padded.shape[1]) < 2 * lengths[:, None]).long()
            rows |= zip(numbers, self.encode({self.model.main_input_name: padded, "attention_mask": mask}))
        del subsampling.heard
        return [rows[number] for number in range(len(frames))]

    def decoder(self, **settings: Any) -> Any:
        """Return a decoder with some settings, `max_active`: a search of CTC outputs in a graph."""
        if self.family == "attention":
            return Generator(self, settings)
        if self.family == "transducer":
            return TransducerDecoder(self.model, self.processor, **settings)
        return (GraphDecoder if "max_active" in settings else CTCDecoder)(self.processor, **settings)


class Frames(dict[str, np.ndarray]):
    """Whisper's frames `[T, D]` of recordings by their paths, from folders of examples/train_on_whisper/features.py."""

    def __init__(self, folders: list[Path]) -> None:
        for folder in folders:
            places = corpora.lines_of(folder / "index.jsonl")
            data = np.memmap(folder / "frames.raw", np.float16, "r").reshape(places[-1]["end"], -1)
            self |= {line["audio"]: data[line["start"] : line["end"]] for line in places}


@dataclass(eq=False)
class Heard:
    """Clips, and what a model makes of each, `[T, ...]`."""

    recogniser: Any
    clips: list[Clip]
    rows: list[Tensor]

    @functools.cached_property
    def seconds(self) -> float:
        """Of audio, all clips together."""
        return sum(clip.seconds for clip in self.clips)

    @functools.cache  # noqa: B019
    def batches(self, size: int) -> list[Batch]:
        """Return the rows in batches of similar length."""
        return [batch_of(self.rows, numbers) for numbers in by_length(self.rows, size)]

    @functools.cache  # noqa: B019
    def inputs(self, size: int) -> list[dict[str, Tensor]]:
        audio = [clip.audio for clip in self.clips]
        return [self.recogniser.inputs([audio[n] for n in numbers]) for numbers in by_length(audio, size)]

    def decode(self, decoder: Any, size: int = BATCH, contexts: list[Any] | None = None) -> list[str]:
        """Return transcripts of all clips; `contexts`: phrases of each."""
        found = [""] * len(self.rows)
        for numbers, frames, lengths in self.batches(size):
            for places, chosen in self._parts(decoder, numbers):
                mine = [numbers[place] for place in places]
                given = None if contexts is None else [contexts[number] for number in mine]
                for number, n_best in zip(mine, chosen.decode(frames[places], lengths[places], given), strict=True):
                    found[number] = n_best[0].text
        return found

    def _parts(self, decoder: Any, numbers: list[int]) -> list[tuple[list[int], Any]]:
        """Return places in a batch and their decoder. As in pipelines, beams of short recordings are ranked by sums."""
        every = list(range(len(numbers)))
        if not isinstance(decoder, Generator) or not decoder.follows_lm or "length_penalty" in decoder.settings:
            return [(every, decoder)]
        short = [place for place in every if self.clips[numbers[place]].seconds <= SHORT]
        others = [place for place in every if place not in short]
        by_sums = dataclasses.replace(decoder, settings={**decoder.settings, "length_penalty": 0.0})
        return [(places, each) for places, each in ((short, by_sums), (others, decoder)) if places]

    def encoder_seconds(self, size: int) -> float:
        """Return how long the model takes to hear all clips in batches of a size."""
        model = self.recogniser.model
        call = model if self.recogniser.family == "CTC" else getattr(model, "get_audio_features", None) or model.get_encoder()
        inputs = self.inputs(size)
        return measure.seconds_of(lambda: [call(**batch) for batch in inputs], self.recogniser.device)

    def of(self, numbers: list[int]) -> Heard:
        """Return some of the clips."""
        return Heard(self.recogniser, [self.clips[n] for n in numbers], [self.rows[n] for n in numbers])

    def joined(self, size: int, audio: bool = False) -> Heard:
        """Return so many clips at a time as one: their frames, or with `audio` what the model hears in all of it."""
        clips = corpora.joined(self.clips, size)
        if audio and size > 1:
            return self.recogniser.hear(clips, 1)
        return Heard(self.recogniser, clips, [torch.cat(self.rows[n * size : (n + 1) * size]) for n in range(len(clips))])


@dataclass(eq=False)
class Generator:
    """`generate` of a decoder with attention, called as other decoders are: an encoder's states to a transcript of each row."""

    recogniser: Recogniser
    settings: dict[str, Any]

    @property
    def follows_lm(self) -> bool:
        """Return whether a language model takes part in a beam search."""
        of_lm = self.settings.get("lm") is not None and self.settings.get("lm_weight") != 0
        return of_lm and self.settings.get("num_beams", 1) > 1

    def decode(
        self, states: Tensor, lengths: Tensor | None = None, contexts: list[Any] | None = None
    ) -> list[list[types.SimpleNamespace]]:
        """Return the transcripts of each row, best first; with `num_return_sequences` also their tokens and summed scores."""
        model, processor = self.recogniser.model, self.recogniser.processor
        given: dict[str, Any] = self.settings | ({} if contexts is None else {"phrases": contexts})
        if "phrases" not in given:
            given.pop("phrase_weight", None)
        if {"lm", "phrases", "rescorer"} & given.keys():
            given["processor"] = processor
        generate = model.generate
        if "num_return_sequences" in given:
            given |= {"return_dict_in_generate": True, "output_scores": True}
            if prefix := getattr(processor.tokenizer, "prefix_tokens", None):  # Whisper's own `generate` returns one of each
                generate = functools.partial(GenerationMixin.generate, model)
                given["decoder_input_ids"] = torch.tensor([prefix] * len(states), device=states.device)
        outputs = self.recogniser.outputs(states, lengths)
        found = generate(encoder_outputs=outputs, custom_generate=seq2seq_generate, **given)
        tokens = found if isinstance(found, Tensor) else found.sequences
        texts = processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        hypotheses = [types.SimpleNamespace(text=text.strip()) for text in texts]
        if "num_return_sequences" in given:
            penalty = given.get("length_penalty", model.generation_config.length_penalty or 1.0)
            sizes = (found.beam_indices >= 0).sum(1).tolist()
            for each, row, score, size in zip(hypotheses, tokens.tolist(), found.sequences_scores.tolist(), sizes):
                each.token_ids, each.score = row[len(row) - found.beam_indices.shape[1] :][: size - 1], score * size**penalty
        most = given.get("num_return_sequences", 1)
        return [hypotheses[first : first + most] for first in range(0, len(hypotheses), most)]


def by_length(rows: list[Any], size: int) -> list[list[int]]:
    """Return numbers of the rows, in batches of similar length."""
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    return [order[first : first + size] for first in range(0, len(order), size)]


def batch_of(rows: list[Tensor], numbers: list[int]) -> Batch:
    padded = torch.nn.utils.rnn.pad_sequence([rows[number] for number in numbers], batch_first=True)
    return numbers, padded, torch.tensor([len(rows[number]) for number in numbers], device=padded.device)


def stock_generate(model: Any, frames: Tensor, lengths: Tensor) -> Tensor:
    """Return token ids `[B, L]` of stock `generate` for a transducer's frames, as if the encoder had given them."""
    mask = torch.arange(frames.shape[1], device=frames.device) < lengths[:, None]
    outputs = types.SimpleNamespace(last_hidden_state=frames, pooler_output=frames, attention_mask=mask)
    model.get_audio_features = lambda **_: outputs
    # It takes the room for tokens from the number of features.
    features = frames.new_zeros((len(frames), frames.shape[1] * model.config.encoder_config.subsampling_factor, 1))
    try:
        return model.generate(input_features=features).sequences
    finally:
        del model.get_audio_features
