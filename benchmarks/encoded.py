"""What benchmarks of transducers share: clips as an encoder's frames, in batches, and what stock `generate` makes of them."""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Batch = tuple[list[int], torch.Tensor, torch.Tensor]
ENCODED_AT_ONCE = 16


@dataclass
class Clips:
    """Clips, and what a transducer's encoder makes of them, sorted by length and in batches of several sizes.

    Args:
        name: the model's.
        model, processor: what was loaded.
        texts: transcripts.
        seconds: of audio, all clips together.
        rows: frames of each clip, projected for the joint network, `[T, D]`.
        batches: by size: numbers of the clips, frames `[B, T, D]`, lengths `[B]`.
        inputs: by size: what the encoder takes for each batch.
    """

    name: str
    model: Any
    processor: Any
    texts: list[str]
    seconds: float
    rows: list[torch.Tensor]
    batches: dict[int, list[Batch]]
    inputs: dict[int, list[dict[str, torch.Tensor]]]

    @property
    def device(self) -> str:
        return self.model.device.type

    def transcripts(self, decoder: Any) -> list[str]:
        """Transcripts of all clips."""
        found = [""] * len(self.rows)
        for numbers, frames, lengths in next(reversed(self.batches.values())):
            for number, n_best in zip(numbers, decoder.decode(frames, lengths), strict=True):
                found[number] = n_best[0].text
        return found

    def text(self, tokens: list[int]) -> str:
        """Text of tokens, special ones and blanks left out."""
        tokens = [token for token in tokens if token != self.model.config.blank_token_id]
        return self.processor.tokenizer.decode(tokens, group_tokens=False, skip_special_tokens=True)

    def encode(self, size: int) -> None:
        for inputs in self.inputs[size]:
            self.model.get_audio_features(**inputs, output_attention_mask=True)

    def wer(self, found: list[str]) -> dict[str, float]:
        """Word error rates of the even clips (the first one is even), the odd ones, and all, in percent."""
        import jiwer

        parts = {"even": slice(0, None, 2), "odd": slice(1, None, 2), "all": slice(None)}
        return {name: 100 * jiwer.wer(self.texts[part], found[part]) for name, part in parts.items()}


def load(name: str, manifest: Path, device: str, sizes: tuple[int, ...], most: int | None = None) -> Clips:
    """Load a model and (at `most` so many of) the clips of a manifest, and run the encoder.

    A manifest has a line {"audio": path, "text": transcript} per clip.
    """
    import soundfile
    import transformers
    from transformers import AutoConfig, AutoProcessor

    (architecture,) = AutoConfig.from_pretrained(name).architectures
    model = getattr(transformers, architecture).from_pretrained(name, dtype=torch.float32).eval().to(device)
    processor = AutoProcessor.from_pretrained(name)
    rate = processor.feature_extractor.sampling_rate
    clips = [json.loads(line) for line in manifest.read_text().splitlines() if line.strip()][:most]
    audio = [soundfile.read(manifest.parent / clip["audio"], dtype="float32")[0] for clip in clips]

    def inputs(numbers: list[int]) -> dict[str, torch.Tensor]:
        features = processor.feature_extractor(
            [audio[i] for i in numbers], sampling_rate=rate, return_tensors="pt", padding=True, return_attention_mask=True
        ).to(device)
        return {what: features[what] for what in ("input_features", "attention_mask")}

    rows = {}
    for numbers in by_length(audio, ENCODED_AT_ONCE):
        outputs = model.get_audio_features(**inputs(numbers), output_attention_mask=True)
        lengths = outputs.attention_mask.sum(-1)
        rows |= {number: frames[:length] for number, frames, length in zip(numbers, outputs.pooler_output, lengths)}
    return Clips(
        Path(name).name,
        model,
        processor,
        [clip["text"] for clip in clips],
        sum(map(len, audio)) / rate,
        [rows[i] for i in range(len(rows))],
        {size: batched([rows[i] for i in range(len(rows))], size) for size in sizes},
        {size: [inputs(numbers) for numbers in by_length(audio, size)] for size in sizes},
    )


def by_length(rows: list[Any], size: int) -> list[list[int]]:
    """Numbers of the rows, in batches of similar length."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    return [order[first : first + size] for first in range(0, len(order), size)]


def batched(rows: list[torch.Tensor], size: int) -> list[Batch]:
    """Frames of rows, `[T, D]` each, in batches."""
    return [
        (
            numbers,
            torch.nn.utils.rnn.pad_sequence([rows[i] for i in numbers], batch_first=True),
            torch.tensor([len(rows[i]) for i in numbers], device=rows[0].device),
        )
        for numbers in by_length(rows, size)
    ]


def generate(model: Any, batches: list[Batch]) -> list[tuple[list[int], torch.Tensor]]:
    """What stock `generate` makes of frames, as if the encoder had given them: numbers and token ids `[B, L]` by batch."""
    found = []
    for numbers, frames, lengths in batches:
        mask = torch.arange(frames.shape[1], device=frames.device) < lengths[:, None]
        outputs = types.SimpleNamespace(last_hidden_state=frames, pooler_output=frames, attention_mask=mask)
        model.get_audio_features = lambda outputs=outputs, **_: outputs
        # It takes the room for tokens from the number of features.
        features = frames.new_zeros((len(frames), frames.shape[1] * model.config.encoder_config.subsampling_factor, 1))
        found.append((numbers, model.generate(input_features=features).sequences))
    del model.get_audio_features
    return found
