"""Provide an encoder for CTC models and transducers. A few trained Conformer layers follow a (usually frozen) Whisper encoder.

This encoder replaces the encoder in `ParakeetForCTC`, `ParakeetForRNNT` and `ParakeetForTDT`. Whisper gets each recording at
its true length instead of 30 s, and a row's frames don't depend on the row's batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import WhisperConfig, WhisperFeatureExtractor
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoder, ParakeetForCTC, ParakeetForRNNT, ParakeetForTDT
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from ..search.networks.model import TransducerModel, TransformersTransducer
from .configuration import WhisperTopConfig, WhisperTopCTCConfig, WhisperTopRNNTConfig, WhisperTopTDTConfig
from .registration import register_feature_extractors, register_models


class WhisperTopFeatureExtractor(WhisperFeatureExtractor):  # type: ignore[no-any-unimported]
    """Compute Whisper's log-mel frames at a recording's true length.

    Silence of `end_silence` seconds is added after each recording, because Whisper was trained on speech followed by silence.

    Args:
        end_silence: length of the added silence, in seconds.
    """

    def __init__(self, end_silence: float = 0.32, **kwargs: Any) -> None:
        super().__init__(**{"return_attention_mask": True, **kwargs})
        self.end_silence = end_silence

    def __call__(self, raw_speech: Any, padding: Any = "longest", **kwargs: Any) -> Any:
        """Return `input_features` `[B, F, M]`, with 100 frames per second, and the `attention_mask` `[B, F]`.

        Args:
            raw_speech: the samples of one recording, or a list of several recordings' samples.
            padding, kwargs: as for Transformers' `WhisperFeatureExtractor`.
        """
        several = isinstance(raw_speech, (list, tuple)) and not np.isscalar(raw_speech[0])
        silence = np.zeros(round(self.end_silence * self.sampling_rate), dtype=np.float32)
        recordings = raw_speech if several else [raw_speech]
        extended = [np.concatenate([np.asarray(samples, dtype=np.float32), silence]) for samples in recordings]
        extracted = super().__call__(
            extended, padding=padding, **{"return_attention_mask": True, "truncation": False, **kwargs}
        )
        features, mask = extracted["input_features"], extracted["attention_mask"]
        extracted["input_features"] = features.swapaxes(1, 2)
        extracted["attention_mask"] = mask[:, : features.shape[2]]
        return extracted


class WhisperFrames(nn.Module):
    """Run Whisper's encoder at recordings' true length, then stack and project frames. `config`: the whole encoder's config."""

    def __init__(self, config: WhisperTopConfig) -> None:
        super().__init__()
        whisper = WhisperConfig(**config.whisper)
        self.whisper = WhisperEncoder(whisper)
        self.stacked = config.subsampling_factor // 2
        self.projection = nn.Linear(self.stacked * whisper.d_model, config.hidden_size)

    def forward(self, input_features: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the frames for the layers above, `[B, F, M]` -> `[B, ceil(F / subsampling_factor), D]`."""
        return self.projected(self.heard(input_features, attention_mask), attention_mask)

    def heard(self, input_features: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return Whisper's frames, 50 per second: `[B, F, M]` -> `[B, ceil(F / 2), D_whisper]`.

        Raises:
            ValueError: a recording has more frames than Whisper has positions.
        """
        whisper = self.whisper
        frames = (input_features.shape[1] + 1) // 2
        if frames > whisper.max_source_positions:
            raise ValueError(
                f"the recording has {frames / 50:.1f} s; this Whisper hears {whisper.max_source_positions / 50:g} s at most: "
                "cut it, or give the pipeline chunk_length_s"
            )
        mask = None if attention_mask is None else attention_mask.to(whisper.conv1.weight.dtype)
        hidden = input_features.transpose(1, 2).to(whisper.conv1.weight.dtype)
        hidden = hidden if mask is None else hidden * mask[:, None]
        hidden = nn.functional.gelu(whisper.conv1(hidden))
        hidden = hidden if mask is None else hidden * mask[:, None]
        hidden = nn.functional.gelu(whisper.conv2(hidden)).transpose(1, 2) + whisper.embed_positions.weight[:frames]
        allowed = None if mask is None else torch.where(mask[:, None, None, ::2] > 0, 0.0, torch.finfo(hidden.dtype).min)
        allowed = None if allowed is None else allowed.to(hidden.dtype).expand(-1, 1, frames, -1)
        for layer in whisper.layers:
            hidden = layer(hidden, allowed)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return whisper.layer_norm(hidden)

    def projected(self, frames: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Stack each S = subsampling_factor / 2 successive frames of Whisper, and project each stack: `[B, F', D_whisper]` ->
        `[B, ceil(F' / S), D]`.
        """
        if attention_mask is not None:
            frames = frames * attention_mask[:, ::2, None].to(frames.dtype)
        frames = nn.functional.pad(frames, (0, 0, 0, -frames.shape[1] % self.stacked))
        return self.projection(frames.unflatten(1, (-1, self.stacked)).flatten(2))


class WhisperTopEncoder(ParakeetEncoder):  # type: ignore[no-any-unimported]
    """A Whisper encoder, followed by Conformer layers. The outputs have the same form as in a `ParakeetEncoder`."""

    config: WhisperTopConfig
    config_class = WhisperTopConfig

    def __init__(self, config: WhisperTopConfig) -> None:
        super().__init__(config)
        self.subsampling = WhisperFrames(config)
        self.input_scale = 1.0
        self.post_init()


class WhisperTopForCTC(ParakeetForCTC):  # type: ignore[no-any-unimported]
    """A CTC model on a `WhisperTopEncoder`."""

    config: WhisperTopCTCConfig
    config_class = WhisperTopCTCConfig


class WhisperTopForRNNT(ParakeetForRNNT):  # type: ignore[no-any-unimported]
    """An RNN transducer on a `WhisperTopEncoder`."""

    config: WhisperTopRNNTConfig
    config_class = WhisperTopRNNTConfig

    def as_transducer(self, frame_seconds: float | None = None) -> TransducerModel:
        """Return the adapter for this package's decoders."""
        return TransformersTransducer(self, frame_seconds)


class WhisperTopForTDT(ParakeetForTDT):  # type: ignore[no-any-unimported]
    """A token-and-duration transducer on a `WhisperTopEncoder`."""

    config: WhisperTopTDTConfig
    config_class = WhisperTopTDTConfig

    def as_transducer(self, frame_seconds: float | None = None) -> TransducerModel:
        """Return the adapter for this package's decoders."""
        return TransformersTransducer(self, frame_seconds)


register_feature_extractors()
register_models()
