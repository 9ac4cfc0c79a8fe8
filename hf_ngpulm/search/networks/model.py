"""Define what a transducer must offer to be decoded, and how the transducers of Transformers offer it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from .networks import TransducerNetworks, is_plain, networks_of

# The state of a prediction network: tensors with the batch as their first dimension.
State = tuple[Tensor, ...]

# Those of Transformers that are a sum, an activation and a linear layer.
_JOINT_NETWORKS = (
    "ParakeetRNNTJointNetwork", "ParakeetTDTJointNetwork", "NemotronAsrStreamingRNNTJointNetwork",
    "Nemotron3_5AsrRNNTJointNetwork",
)  # fmt: skip


class TransducerModel(ABC):
    """A transducer, taken apart: encoder, prediction network and joint network.

    To decode a transducer of another library, derive from this; four methods are all there is to write.

    Args:
        vocab_size: number of token classes, the blank included.
        blank_id: class of the blank.
        durations: frames that a duration class stands for (TDT), by class; None for an RNN-T.
        max_symbols: tokens that may be emitted at one frame.
        frame_seconds: how long a frame of the encoder's output is; None if that isn't known.
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
            raise ValueError(f"the blank has the id {blank_id}, outside the {vocab_size} token classes")
        if durations is not None and (not durations or min(durations) < 0 or max(durations) < 1):
            raise ValueError(f"durations should be frames, 0 and up, with one above 0; got {durations}")
        self.vocab_size = vocab_size
        self.blank_id = blank_id
        self.durations = durations
        self.max_symbols = max_symbols
        self.frame_seconds = frame_seconds

    @abstractmethod
    def encode(self, input_features: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return frames as the joint network takes them, projected once for all: `[B, T, D]`, and their number, `[B]`."""

    @abstractmethod
    def start(self, batch_size: int, like: Tensor) -> tuple[Tensor, State]:
        """Return the prediction before the first token, `[B, D]`, projected, and the state; of the device and type of
        `like`."""

    @abstractmethod
    def predict(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the prediction after one more token: `[B]` -> `[B, D]`, projected, and the new state."""

    def parameters(self) -> Iterator[Tensor]:
        """Yield the tensors that predictions and logits depend on: by default those of all attributes."""
        for value in vars(self).values():
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, torch.nn.Module):
                yield from value.parameters()

    @abstractmethod
    def join(self, frames: Tensor, predictions: Tensor) -> Tensor:
        """Return logits of the token classes, and after them of the durations: two `[..., D]` that broadcast -> `[..., C]`."""

    def internal_lm(self, predictions: Tensor) -> Tensor:
        """Return what the transducer takes for likely without hearing anything: `[..., D]` -> log-probabilities, float32
        `[..., V]`.

        The encoder's part is zero, and the blank (-inf) is left out (Meng et al., "Internal language model estimation for
        domain-adaptive end-to-end speech recognition", SLT 2021; for a HAT, Variani et al., "Hybrid autoregressive
        transducer", ICASSP 2020, equation 9).
        """
        logits = self.join(torch.zeros_like(predictions), predictions)[..., : self.vocab_size].float()
        is_blank = torch.arange(self.vocab_size, device=logits.device) == self.blank_id
        return torch.log_softmax(logits.masked_fill(is_blank, -torch.inf), dim=-1)

    def networks(self) -> TransducerNetworks | None:
        """Return the weights behind `start`, `predict` and `join`, for engines that run them as a whole; None if they are
        others'."""
        return None


def transducer_of(model: Any, frame_seconds: float | None = None) -> TransducerModel:
    """Return how a model is decoded.

    A `TransducerModel` says it itself, other models may have a method `as_transducer(frame_seconds)` that gives one, and
    all others are taken for models of Transformers.

    Args:
        model: the model.
        frame_seconds: how long a frame of the encoder's output is, if that is known.

    Raises:
        ValueError: it isn't a transducer that is known here.
    """
    if isinstance(model, TransducerModel):
        return model
    if hasattr(model, "as_transducer"):
        return cast(TransducerModel, model.as_transducer(frame_seconds))
    return TransformersTransducer(model, frame_seconds)


class TransformersTransducer(TransducerModel):
    """`ParakeetForRNNT`, `ParakeetForTDT`, `NemotronAsrStreamingForRNNT`, `Nemotron3_5AsrForRNNT`, and models built alike.

    Args:
        model: the model.
        frame_seconds: how long a frame of the encoder's output is.
    """

    def __init__(self, model: Any, frame_seconds: float | None = None) -> None:
        for part in ("get_audio_features", "decoder", "joint"):
            if not hasattr(model, part):
                raise ValueError(
                    f"{type(model).__name__} isn't a transducer that is known here (it has no {part!r}); "
                    "derive from hf_ngpulm.search.networks.model.TransducerModel to say how it is decoded"
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
        # Generation begins with the blank, whose embedding is an input like others'.
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
