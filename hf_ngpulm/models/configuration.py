"""Configurations of the transducers in this package."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import CONFIG_MAPPING, PretrainedConfig

from .registration import register_configurations


class _TransducerConfig(PretrainedConfig):  # type: ignore[no-any-unimported]
    """The base class of both transducer configurations. It has the arguments that both configurations share.

    Args:
        vocab_size: number of token classes, including the blank.
        blank_token_id: class of the blank. The prediction network also reads the blank before the first token.
        decoder_hidden_size: width of the prediction network and of the joint network.
        hidden_act: activation of the joint network.
        max_symbols_per_step: maximum number of tokens per frame.
        pad_token_id: token id that pads labels.
        encoder_config: configuration of the encoder, or a dict of the configuration; by default for a `ParakeetEncoder`. The
            encoder must return `last_hidden_state` and `attention_mask`.
    """

    is_composition = True

    def __init__(
        self,
        vocab_size: int = 1025,
        blank_token_id: int = 1024,
        decoder_hidden_size: int = 640,
        hidden_act: str = "relu",
        max_symbols_per_step: int = 10,
        pad_token_id: int = 1024,
        encoder_config: Any = None,
        **kwargs: Any,
    ) -> None:
        if not 0 <= blank_token_id < vocab_size:
            raise ValueError(f"blank_token_id={blank_token_id} is outside the {vocab_size} token classes")
        if encoder_config is None or isinstance(encoder_config, dict):
            settings = dict(encoder_config or {})
            encoder_config = CONFIG_MAPPING[settings.pop("model_type", "parakeet_encoder")](**settings)
        self.vocab_size = vocab_size
        self.blank_token_id = blank_token_id
        self.decoder_hidden_size = decoder_hidden_size
        self.hidden_act = hidden_act
        self.max_symbols_per_step = max_symbols_per_step
        self.encoder_config = encoder_config
        kwargs.setdefault("is_encoder_decoder", True)
        super().__init__(**{"pad_token_id": pad_token_id, **kwargs})


class HatConfig(_TransducerConfig):
    """Configuration of a `HatForASR`. The blank is the last class. A configuration has the arguments of `_TransducerConfig`,
    and one more argument.

    Args:
        num_decoder_layers: number of LSTM layers of the prediction network.
    """

    model_type = "hat_transducer"

    def __init__(self, num_decoder_layers: int = 1, **kwargs: Any) -> None:
        self.num_decoder_layers = num_decoder_layers
        super().__init__(**kwargs)
        if self.blank_token_id != self.vocab_size - 1:
            raise ValueError(f"blank_token_id={self.blank_token_id}: a HAT's blank is the last class, {self.vocab_size - 1}")


class StatelessTransducerConfig(_TransducerConfig):
    """Configuration of a `StatelessTransducerForASR`. It has the arguments of `_TransducerConfig`, and one more argument.

    Args:
        context_size: number of tokens that the prediction network sees.
    """

    model_type = "stateless_transducer"

    def __init__(self, context_size: int = 2, **kwargs: Any) -> None:
        if context_size < 1:
            raise ValueError(f"context_size={context_size}: the prediction network should see at least one token")
        self.context_size = context_size
        super().__init__(**kwargs)


class WhisperTopConfig(PretrainedConfig):  # type: ignore[no-any-unimported]
    """Configuration of a `WhisperTopEncoder`. It has a `ParakeetEncoderConfig`'s entries for the layers, and two more entries.

    Args:
        whisper: configuration of the Whisper model whose encoder is below these layers, as a dict.
        subsampling_factor: number of mel frames (10 ms each) for each output frame: 2, 4 or 8.
    """

    # Parakeet's classes can't be base classes, because they can be loaded only after Transformers' auto classes.
    model_type = "whisper_top_encoder"

    whisper: dict[str, Any] | None = None
    hidden_size: int = 256
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    hidden_act: str = "silu"
    attention_bias: bool = True
    convolution_bias: bool = True
    conv_kernel_size: int = 9
    subsampling_factor: int = 8
    subsampling_conv_channels: int = 1
    subsampling_conv_kernel_size: int = 3
    subsampling_conv_stride: int = 2
    num_mel_bins: int = 80
    dropout: float = 0.1
    dropout_positions: float = 0.0
    layerdrop: float = 0.0
    activation_dropout: float = 0.1
    attention_dropout: float = 0.1
    max_position_embeddings: int = 1500
    scale_input: bool = False
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs: Any) -> None:
        if self.subsampling_factor not in (2, 4, 8):
            raise ValueError(f"subsampling_factor={self.subsampling_factor}: it should be 2, 4 or 8")
        self.num_key_value_heads = self.num_attention_heads
        super().__post_init__(**kwargs)


class WhisperTopCTCConfig(PretrainedConfig):  # type: ignore[no-any-unimported]
    """Configuration of a `WhisperTopForCTC`. It is a `ParakeetCTCConfig` whose encoder has a `WhisperTopConfig`."""

    model_type = "whisper_top_ctc"
    sub_configs_defaults: ClassVar[dict[str, Any]] = {"encoder_config": WhisperTopConfig}

    vocab_size: int = 257
    pad_token_id: int = 256
    ctc_loss_reduction: str = "mean"
    ctc_zero_infinity: bool = True
    initializer_range: float = 0.02
    encoder_config: Any = None


class WhisperTopRNNTConfig(PretrainedConfig):  # type: ignore[no-any-unimported]
    """Configuration of a `WhisperTopForRNNT`. It is a `ParakeetRNNTConfig` whose encoder has a `WhisperTopConfig`."""

    model_type = "whisper_top_rnnt"
    sub_configs_defaults: ClassVar[dict[str, Any]] = {"encoder_config": WhisperTopConfig}

    vocab_size: int = 257
    decoder_hidden_size: int = 256
    num_decoder_layers: int = 1
    hidden_act: str = "relu"
    max_symbols_per_step: int = 10
    pad_token_id: int = 256
    blank_token_id: int = 256
    is_encoder_decoder: bool = True
    initializer_range: float = 0.02
    encoder_config: Any = None


class WhisperTopTDTConfig(WhisperTopRNNTConfig):
    """Configuration of a `WhisperTopForTDT`. It has the entries of a `WhisperTopRNNTConfig`, and one more entry.

    Args:
        durations: the numbers of frames that a token or a blank may last.
    """

    model_type = "whisper_top_tdt"

    durations: list[int] | tuple[int, ...] = (0, 1, 2, 3, 4)


register_configurations()
