"""Two transducers as models of Transformers: HAT, and a transducer whose prediction network has no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.utils import ModelOutput

from ..decoding.transducer import TransducerDecoder
from ..search.networks.model import State, TransducerModel, TransformersTransducer
from ..search.networks.networks import TransducerNetworks, is_plain, networks_of, stateless_networks, with_blank_head
from .configuration import HatConfig, StatelessTransducerConfig
from .losses import transducer_loss
from .registration import register_models


@dataclass
class TransducerOutput(ModelOutput):  # type: ignore[no-any-unimported]
    """The output of a transducer.

    Attributes:
        loss: mean over the rows of the negative natural log-probability per label.
        logits: outputs of the joint network, `[B, T, U + 1, V]`; None if no labels were passed.
        last_hidden_state: frames of the encoder, `[B, T, D]`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None


@dataclass
class TransducerGenerateOutput(ModelOutput):  # type: ignore[no-any-unimported]
    """The output of `generate`. `sequences` are token ids `[B * num_return_sequences, U]`, padded with blanks."""

    sequences: Tensor | None = None


class LstmPrediction(nn.Module):
    """The prediction network of an RNN-T."""

    def __init__(self, config: HatConfig) -> None:
        super().__init__()
        size = config.decoder_hidden_size
        self.embedding = nn.Embedding(config.vocab_size, size)
        self.lstm = nn.LSTM(size, size, config.num_decoder_layers, batch_first=True)
        self.decoder_projector = nn.Linear(size, size)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the network's outputs `[B, U, D]` after the tokens `[B, U]`, from the initial state."""
        return self.decoder_projector(self.lstm(self.embedding(input_ids))[0])


class StatelessPrediction(nn.Module):
    """A prediction network that reads only the last tokens (Ghodsi et al., "RNN-transducer with stateless prediction network",
    ICASSP 2020). The output is a weighted sum of the tokens' embeddings. Each position and channel has a weight.
    """

    def __init__(self, config: StatelessTransducerConfig) -> None:
        super().__init__()
        size = config.decoder_hidden_size
        self.context_size, self.blank_token_id = config.context_size, config.blank_token_id
        self.embedding = nn.Embedding(config.vocab_size, size)
        self.convolution = nn.Conv1d(size, size, config.context_size, groups=size)
        self.activation = nn.ReLU()
        self.decoder_projector = nn.Linear(size, size)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the network's outputs `[B, U, D]` after the tokens `[B, U]`. The first token follows a context of blanks."""
        return self.of_contexts(nn.functional.pad(input_ids, (self.context_size - 1, 0), value=self.blank_token_id))

    def of_contexts(self, tokens: Tensor) -> Tensor:
        """Return the network's outputs `[B, U, D]`. The tokens `[B, context_size - 1 + U]` begin with the context."""
        mixed = self.convolution(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        return self.decoder_projector(self.activation(mixed))


class SumJoint(nn.Module):
    """The joint network of an RNN-T. It adds both inputs, and applies an activation and a linear layer."""

    def __init__(self, config: StatelessTransducerConfig | HatConfig) -> None:
        super().__init__()
        self.activation = ACT2FN[config.hidden_act]
        self.head = nn.Linear(config.decoder_hidden_size, config.vocab_size)

    def forward(self, encoder_hidden_states: Tensor, decoder_hidden_states: Tensor) -> Tensor:
        return self.head(self.activation(encoder_hidden_states + decoder_hidden_states))


class HatJoint(nn.Module):
    """The joint network of a HAT (Variani et al. 2020, equations 4 to 6). The blank has its own probability, and the labels
    share the remaining probability. The outputs are log-probabilities. The label distribution results from normalising the
    labels' probabilities without the blank.
    """

    def __init__(self, config: HatConfig) -> None:
        super().__init__()
        self.activation = ACT2FN[config.hidden_act]
        self.head = nn.Linear(config.decoder_hidden_size, config.vocab_size - 1)
        self.blank_head = nn.Linear(config.decoder_hidden_size, 1)

    def forward(self, encoder_hidden_states: Tensor, decoder_hidden_states: Tensor) -> Tensor:
        hidden = self.activation(encoder_hidden_states + decoder_hidden_states)
        blank = self.blank_head(hidden)
        labels = torch.log_softmax(self.head(hidden), dim=-1) + nn.functional.logsigmoid(-blank)
        return torch.cat([labels, nn.functional.logsigmoid(blank)], dim=-1)


class _Transducer(PreTrainedModel):  # type: ignore[no-any-unimported]
    base_model_prefix = "encoder"
    main_input_name = "input_features"
    input_modalities = "audio"

    encoder: Any
    decoder: nn.Module
    joint: nn.Module

    def __init__(self, config: Any, decoder: nn.Module, joint: nn.Module) -> None:
        super().__init__(config)
        self.encoder = AutoModel.from_config(config.encoder_config)
        self.encoder_projector = nn.Linear(config.encoder_config.hidden_size, config.decoder_hidden_size)
        self.decoder, self.joint = decoder, joint
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # PyTorch's own initial values, which suit transducers; the encoder initialises itself.
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.LSTM, nn.Embedding)):
            module.reset_parameters()

    def get_audio_features(self, input_features: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        """Return the encoder's outputs. `pooler_output` has the frames `[B, T, D]` that are projected for the joint network."""
        outputs = self.encoder(input_features=input_features, attention_mask=attention_mask, **kwargs)
        if attention_mask is not None and getattr(outputs, "attention_mask", None) is None:
            # Encoders of Transformers before 5 don't say which of their frames are no padding.
            outputs.attention_mask = self.encoder._get_output_attention_mask(attention_mask, outputs.last_hidden_state.shape[1])
        outputs.pooler_output = self.encoder_projector(outputs.last_hidden_state)
        return outputs

    def as_transducer(self, frame_seconds: float | None = None) -> TransducerModel:
        """Return the adapter for this package's decoders."""
        return TransformersTransducer(self, frame_seconds)

    def forward(
        self, input_features: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> TransducerOutput:
        """Return the loss, and a score of each class for every pair of a frame and a number of labels (0 to U).

        Args:
            input_features: output of the feature extractor.
            attention_mask: mask that is 1 for features that aren't padding.
            labels: token ids, padded with `pad_token_id` or -100: `[B, U]`.
        """
        outputs = self.get_audio_features(input_features, attention_mask, **kwargs)
        if labels is None:
            return TransducerOutput(last_hidden_state=outputs.last_hidden_state)
        blank = self.config.blank_token_id
        is_label = (labels != -100) & (labels != self.config.pad_token_id) & (labels != blank)
        tokens = torch.where(is_label, labels, blank)
        frames = outputs.pooler_output
        logits = self.joint(frames[:, :, None], self.decoder(nn.functional.pad(tokens, (1, 0), value=blank))[:, None])
        lengths = (
            torch.full(frames.shape[:1], frames.shape[1], device=frames.device)
            if outputs.attention_mask is None
            else outputs.attention_mask.sum(-1)
        )
        num_labels = is_label.sum(-1)
        losses = transducer_loss(*blank_and_labels(logits, tokens, blank), lengths, num_labels)
        loss = (losses / num_labels.clamp(min=1)).mean().to(logits.dtype)
        return TransducerOutput(loss=loss, logits=logits, last_hidden_state=outputs.last_hidden_state)

    @torch.inference_mode()
    def generate(
        self, input_features: Tensor, attention_mask: Tensor | None = None, **settings: Any
    ) -> TransducerGenerateOutput:
        """Decode, greedily by default.

        Args:
            input_features, attention_mask: outputs of the feature extractor.
            settings: `lm`, `lm_weight`, `phrases`, `num_beams` and other arguments of `hf_ngpulm.TransducerDecoder`.
        """
        decoder = TransducerDecoder(self, settings.pop("tokenizer", None), confidence=None, **settings)
        hypotheses = decoder(input_features, attention_mask)
        tokens = [torch.tensor(hypothesis.token_ids, dtype=torch.int64) for n_best in hypotheses for hypothesis in n_best]
        padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=decoder.model.blank_id)
        return TransducerGenerateOutput(sequences=padded.to(input_features.device))


class HatForASR(_Transducer):
    """Hybrid autoregressive transducer (Variani et al. 2020, arXiv 2003.07705) with an LSTM as its prediction network.

    The blank has its own probability (a sigmoid), and the labels have their own distribution. The label distribution without
    the encoder's input is the internal language model (section 4 of the paper), which `ilm_weight=` subtracts.
    """

    config_class = HatConfig

    def __init__(self, config: HatConfig) -> None:
        super().__init__(config, LstmPrediction(config), HatJoint(config))

    def as_transducer(self, frame_seconds: float | None = None) -> TransducerModel:
        return _Hat(self, frame_seconds)


class _Hat(TransformersTransducer):
    """Adapter of a `HatForASR` for the decoders."""

    def networks(self) -> TransducerNetworks | None:
        decoder, joint = self.model.decoder, self.model.joint
        if type(decoder) is not LstmPrediction or type(joint) is not HatJoint or not is_plain(joint):
            return None
        labels = networks_of(decoder.embedding, decoder.lstm, decoder.decoder_projector, joint.activation, joint.head)
        return with_blank_head(labels, joint.blank_head)


class StatelessTransducerForASR(_Transducer):
    """An RNN-T whose prediction network reads only the last `context_size` tokens."""

    config_class = StatelessTransducerConfig

    def __init__(self, config: StatelessTransducerConfig) -> None:
        super().__init__(config, StatelessPrediction(config), SumJoint(config))

    def as_transducer(self, frame_seconds: float | None = None) -> TransducerModel:
        return _Stateless(self, frame_seconds)


class _Stateless(TransformersTransducer):
    """Adapter of a `StatelessTransducerForASR` for the decoders. The state has the last tokens, `[B, context_size - 1]`."""

    def start(self, batch_size: int, like: Tensor) -> tuple[Tensor, State]:
        blanks = torch.full((batch_size,), self.blank_id, device=like.device)
        return self.predict(blanks, (blanks[:, None].expand(-1, self.model.decoder.context_size - 1),))

    def predict(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        seen = torch.cat([state[0], tokens[:, None]], dim=1)
        return self.model.decoder.of_contexts(seen)[:, -1], (seen[:, 1:],)

    def networks(self) -> TransducerNetworks | None:
        decoder, joint = self.model.decoder, self.model.joint
        if type(decoder) is not StatelessPrediction or type(joint) is not SumJoint or not is_plain(joint):
            return None
        return stateless_networks(
            decoder.embedding, decoder.convolution, decoder.activation, decoder.decoder_projector, joint.activation, joint.head
        )


def blank_and_labels(logits: Tensor, tokens: Tensor, blank_id: int) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the blank, `[B, T, U + 1]`, and the log-probabilities of each next label, `[B, T, U]`.

    The arguments are logits `[B, T, U + 1, V]` and the labels `[B, U]`.
    """
    logits = logits.float()
    total = logits.logsumexp(dim=-1)
    index = tokens[:, None, :, None].expand(-1, logits.shape[1], -1, -1)
    labels = logits[:, :, :-1].gather(-1, index)[..., 0] - total[:, :, :-1]
    return logits[..., blank_id] - total, labels


register_models()
