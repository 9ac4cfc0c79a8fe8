"""Define the interface of transducers that can be decoded (`TransducerModel`), and implement it for models of Transformers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from .networks import TransducerNetworks, is_plain, networks_of

# The state of a prediction network: tensors whose first dimension is the batch.
State = tuple[Tensor, ...]

# These joint networks of Transformers consist of a sum, an activation and a linear layer.
_JOINT_NETWORKS = (
    "ParakeetRNNTJointNetwork", "ParakeetTDTJointNetwork", "NemotronAsrStreamingRNNTJointNetwork",
    "Nemotron3_5AsrRNNTJointNetwork",
)  # fmt: skip


class TransducerModel(ABC):
    """Interface to a transducer's encoder, prediction network and joint network.

    To decode a transducer of another library, derive from this class and write `encode`, `start`, `predict` and `join`.

    Args:
        vocab_size: number of token classes, including the blank.
        blank_id: class of the blank.
        durations: number of frames of each duration class (TDT); None for an RNN-T.
        max_symbols: maximum number of tokens at one frame.
        frame_seconds: duration of an encoder frame; None if unknown.
    """

    def __init__(
        self,
        vocab_size: int,
        blank_id: int,
        durations: tuple[int, ...] | None = None,
        max_symbols: int = 10,
        frame_seconds: float | None = None,
    ) -> None:
        if not 0 <= blank_id < vocab_size:
            raise ValueError(f"blank_id={blank_id} should lie in 0..{vocab_size - 1}, the token classes")
        if durations is not None and (not durations or min(durations) < 0 or max(durations) < 1):
            raise ValueError(f"durations should be numbers of frames, at least 0 and one above 0; got {durations}")
        self.vocab_size = vocab_size
        self.blank_id = blank_id
        self.durations = durations
        self.max_symbols = max_symbols
        self.frame_seconds = frame_seconds

    @abstractmethod
    def encode(self, input_features: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the frames, projected for the joint network, `[B, T, D]`. Also return each row's number of frames, `[B]`."""

    @abstractmethod
    def start(self, batch_size: int, like: Tensor) -> tuple[Tensor, State]:
        """Return the projected prediction before the first token, `[B, D]`, and the prediction network's state.

        Both have the device and dtype of `like`.
        """

    @abstractmethod
    def predict(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one more token of each row, `[B]`, and return the projected prediction `[B, D]` and the new state."""

    def parameters(self) -> Iterator[Tensor]:
        """Yield the weights on which predictions and logits depend. By default these are the weights of all attributes."""
        for value in vars(self).values():
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, torch.nn.Module):
                yield from value.parameters()

    @abstractmethod
    def join(self, frames: Tensor, predictions: Tensor) -> Tensor:
        """Return the logits of the token classes, followed by the logits of the durations.

        Frames and predictions, each `[..., D]`, are broadcast: the result is `[..., C]`.
        """

    def internal_lm(self, predictions: Tensor) -> Tensor:
        """Return the log-probabilities of the internal LM: predictions `[..., D]` -> float32 `[..., V]`.

        The internal LM is the joint network with zeros in place of the encoder's frame, and with the blank excluded (-inf). See
        Meng et al., "Internal language model estimation for domain-adaptive end-to-end speech recognition", SLT 2021. For a HAT
        see Variani et al., "Hybrid autoregressive transducer", ICASSP 2020, equation 9.

        Each token gets at least the probability of a uniform distribution (`least_internal`), because estimates for unlikely
        tokens are unreliable, and subtracting a low log-probability raises a token's score. Without this lower bound, a search
        with a weak model would add words without end.
        """
        logits = self.join(torch.zeros_like(predictions), predictions)[..., : self.vocab_size].float()
        is_blank = torch.arange(self.vocab_size, device=logits.device) == self.blank_id
        log_probs = torch.log_softmax(logits.masked_fill(is_blank, -torch.inf), dim=-1)
        return log_probs.clamp(min=self.least_internal).masked_fill(is_blank, -torch.inf)

    @property
    def least_internal(self) -> float:
        """Return the lower bound of a token's log-probability in the internal LM."""
        return -math.log(max(self.vocab_size - 1, 1))

    def networks(self) -> TransducerNetworks | None:
        """Return the weights of `start`, `predict` and `join`, for engines that run the networks themselves.

        The default is None, which means that the engines can't run the networks.
        """
        return None


def transducer_of(model: Any, frame_seconds: float | None = None) -> TransducerModel:
    """Return the `TransducerModel` of a model.

    If the model is a `TransducerModel`, it is returned. If it has a method `as_transducer`, the result of
    `as_transducer(frame_seconds)` is returned. Any other model is wrapped in a `TransformersTransducer`.

    Args:
        model: the model.
        frame_seconds: duration of an encoder frame; None if unknown.

    Raises:
        ValueError: the model isn't a transducer that `TransformersTransducer` can wrap.
    """
    if isinstance(model, TransducerModel):
        return model
    if hasattr(model, "as_transducer"):
        return cast(TransducerModel, model.as_transducer(frame_seconds))
    return TransformersTransducer(model, frame_seconds)


def frame_seconds_of(model: Any, processor: Any) -> float | None:
    """Return the duration of a transducer's encoder frame in seconds; None if the model or the processor doesn't tell it."""
    extractor: Any = getattr(processor, "feature_extractor", None)
    encoder = getattr(getattr(model, "config", None), "encoder_config", None)
    step, factor = getattr(extractor, "hop_length", None), getattr(encoder, "subsampling_factor", None)
    return None if step is None or factor is None else step * factor / extractor.sampling_rate


class TransformersTransducer(TransducerModel):
    """Adapter for `ParakeetForRNNT`, `ParakeetForTDT`, `NemotronAsrStreamingForRNNT`, `Nemotron3_5AsrForRNNT`, and similar
    models.

    Args:
        model: the model.
        frame_seconds: duration of an encoder frame.
    """

    def __init__(self, model: Any, frame_seconds: float | None = None) -> None:
        for part in ("get_audio_features", "decoder", "joint"):
            if not hasattr(model, part):
                raise ValueError(
                    f"{type(model).__name__} isn't a transducer of a known kind (no {part!r}); wrap it in a class derived from "
                    "hf_ngpulm.search.networks.model.TransducerModel"
                )
        config = model.config
        durations = getattr(config, "durations", None)
        super().__init__(
            config.vocab_size,
            config.blank_token_id,
            None if durations is None else tuple(durations),
            getattr(config, "max_symbols_per_step", 10),
            frame_seconds,
        )
        self.model = model

    def encode(self, input_features: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> tuple[Tensor, Tensor]:
        outputs = self.model.get_audio_features(
            input_features=input_features, attention_mask=attention_mask, output_attention_mask=True, **kwargs
        )
        frames = outputs.pooler_output
        if outputs.attention_mask is None:
            return frames, torch.full(frames.shape[:1], frames.shape[1], dtype=torch.int64, device=frames.device)
        return frames, outputs.attention_mask.sum(-1).to(torch.int64)

    def start(self, batch_size: int, like: Tensor) -> tuple[Tensor, State]:
        # These models are trained with the blank as the first input. The blank has an embedding like any token.
        lstm = self.model.decoder.lstm
        zeros = like.new_zeros((batch_size, lstm.num_layers, lstm.hidden_size))
        return self.predict(torch.full((batch_size,), self.blank_id, device=like.device), (zeros, zeros))

    def predict(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        decoder = self.model.decoder
        hidden, cell = (part.transpose(0, 1).contiguous() for part in state)
        outputs, (hidden, cell) = decoder.lstm(decoder.embedding(tokens)[:, None], (hidden, cell))
        return decoder.decoder_projector(outputs)[:, 0], (hidden.transpose(0, 1), cell.transpose(0, 1))

    def parameters(self) -> Iterator[Tensor]:
        yield from self.model.decoder.parameters()
        yield from self.model.joint.parameters()

    def join(self, frames: Tensor, predictions: Tensor) -> Tensor:
        return self.model.joint(encoder_hidden_states=frames, decoder_hidden_states=predictions)

    def networks(self) -> TransducerNetworks | None:
        decoder, joint = self.model.decoder, self.model.joint
        own = all(
            getattr(type(self), name) is getattr(TransformersTransducer, name)
            for name in ("start", "predict", "join", "internal_lm")
        )
        known = type(joint).__module__.startswith("transformers.models.") and type(joint).__name__ in _JOINT_NETWORKS
        if not own or not known or not is_plain(joint):
            return None
        return networks_of(decoder.embedding, decoder.lstm, decoder.decoder_projector, joint.activation, joint.head)
