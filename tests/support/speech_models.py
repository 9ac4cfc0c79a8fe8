"""Tiny random models of every family that transcribes with a decoder, each with inputs for two recordings.

All have the text tokens 4 .. 27 and the control tokens 28 .. 39 in common, and `</s>` is 2; Whisper's `</s>` is 28.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEXT = range(4, 28)
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
BART = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
}  # fmt: skip
PARAKEET = {**SMALL, "num_mel_bins": 16, "subsampling_conv_channels": 4, "conv_kernel_size": 3, "layerdrop": 0.0}
PROMPT = [29, 9, 9, 30, 31]  # text within it is no transcript
MEL = 100
WHISPERS_CONTROL = [
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|unused|>", "<|startofprev|>", "<|nospeech|>", "<|other|>", "<|notimestamps|>",
]  # fmt: skip


@dataclass
class Family:
    """A model, what its `generate` takes for two recordings, and what its processor takes beside it."""

    model: Any
    inputs: dict[str, Any]
    prompt_length: int  # tokens before the transcript
    end: int = 2
    settings: dict[str, Any] | None = None


class Tokens:
    """As much of a tokenizer as says which tokens are text."""

    all_special_ids = (0, 1, 2, 3)
    added_tokens_decoder = dict.fromkeys(range(28, 40))

    def __init__(self, start=None):
        self.start = start

    def __len__(self):
        return 40

    def get_vocab(self):
        return {self.convert_ids_to_tokens(token): token for token in range(40)}

    def convert_ids_to_tokens(self, token):
        return f"<|{token}|>" if token in (34, 35) else f"piece{token}"  # two timestamps

    def convert_tokens_to_ids(self, piece):
        return self.start if piece == "<asr_text>" else None


def randomised(model):
    """With weights that make it say something, and differently for different recordings."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.5 / parameter[0].numel() ** 0.5)
    configured(model, max_new_tokens=9, max_length=None, no_repeat_ngram_size=1)
    return model.eval()


def configured(model, **settings):
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


def features(*shape):
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(2))


def prompts(tokens=tuple(PROMPT)):
    return torch.tensor([tokens, tokens])


def whisper(kind=transformers.WhisperForConditionalGeneration, **settings):
    config = transformers.WhisperConfig(
        vocab_size=91, **BART, num_mel_bins=8, max_source_positions=50, max_target_positions=40, pad_token_id=28,
        bos_token_id=28, eos_token_id=28, decoder_start_token_id=29, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = randomised(kind(config))
    configured(model, 
        is_multilingual=True, lang_to_id={"<|en|>": 30, "<|de|>": 31}, task_to_id={"translate": 32, "transcribe": 33},
        prev_sot_token_id=36, no_timestamps_token_id=39, max_initial_timestamp_index=50, return_timestamps=False,
        suppress_tokens=[30, 31, 32, 33, 36, 37], **settings,
    )  # fmt: skip
    inputs = {"input_features": features(8, MEL), "language": "en", "task": "transcribe"}
    return Family(model, inputs, 4, end=28)


def whisper_parts(path):
    """What a pipeline is made of: windows of 1 s, letters, timestamps every 20 ms; the tokenizer's file goes to a path."""
    letters = {letter: token for token, letter in enumerate("Ġabcdefghijklmnopqrstuvwxyz'")}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in WHISPERS_CONTROL])
    tokenizer.add_tokens([AddedToken(f"<|{hundredths / 50:.2f}|>", special=False) for hundredths in range(51)])
    tokenizer.save(str(path))
    model = whisper().model
    suppressed = list(range(29, 40))
    configured(model, suppress_tokens=suppressed, alignment_heads=[[0, 0], [0, 1]], no_repeat_ngram_size=2)
    configured(model, language="en", task="transcribe")
    return {
        "model": model,
        "tokenizer": transformers.WhisperTokenizerFast(tokenizer_file=str(path), pad_token="<|endoftext|>"),
        "feature_extractor": transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1, n_fft=400),
    }


def canary():
    decoder = {**SMALL, "head_dim": 8, "num_key_value_heads": 2, "vocab_size": 40, "max_position_embeddings": 64}
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = transformers.CanaryConfig(
        encoder_config=PARAKEET, decoder_config={**decoder, **special}, vocab_size=40, decoder_start_token_id=31, **special
    )
    inputs = {"input_features": features(80, 16), "decoder_input_ids": prompts()}
    return Family(randomised(transformers.CanaryForConditionalGeneration(config)), inputs, 5, settings={"tokenizer": Tokens()})


def cohere_asr():
    config = transformers.CohereAsrConfig(
        encoder_config={**PARAKEET, "model_type": "parakeet_encoder"}, vocab_size=40, **SMALL, max_position_embeddings=64,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=31,
    )  # fmt: skip
    inputs = {"input_features": features(80, 16), "decoder_input_ids": prompts()}
    model = randomised(transformers.CohereAsrForConditionalGeneration(config))
    return Family(model, inputs, 5, settings={"tokenizer": Tokens()})


def moonshine():
    config = transformers.MoonshineConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, encoder_num_hidden_layers=1, decoder_num_hidden_layers=1,
        encoder_num_attention_heads=2, decoder_num_attention_heads=2, pad_token_id=2,
    )  # fmt: skip
    return Family(randomised(transformers.MoonshineForConditionalGeneration(config)), {"input_values": features(4000)}, 1)


def moonshine_streaming():
    config = transformers.MoonshineStreamingConfig(
        encoder_config={**SMALL, "num_key_value_heads": 2, "sliding_windows": [[16, 4]]}, vocab_size=40, **SMALL,
        num_key_value_heads=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = randomised(transformers.MoonshineStreamingForConditionalGeneration(config))
    return Family(model, {"input_values": features(4000)}, 1)


def speech_to_text():
    config = transformers.Speech2TextConfig(
        vocab_size=40, **BART, num_conv_layers=1, conv_kernel_sizes=(3,), conv_channels=16, input_feat_per_channel=8,
        max_source_positions=64, max_target_positions=64,
    )  # fmt: skip
    model = randomised(transformers.Speech2TextForConditionalGeneration(config))
    configured(model, forced_bos_token_id=30)  # a language
    return Family(model, {"input_features": features(50, 8)}, 2)


def speecht5():
    config = transformers.SpeechT5Config(
        vocab_size=40, hidden_size=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16, decoder_layers=1,
        decoder_attention_heads=2, decoder_ffn_dim=16, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3),
        num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, max_text_positions=64,
        max_speech_positions=600,
    )  # fmt: skip
    return Family(randomised(transformers.SpeechT5ForSpeechToText(config)), {"input_values": features(1600)}, 1)


def seamless_m4t_v2():
    decoder = {f"{part}_{name}": value for part in ("encoder", "decoder")
               for name, value in (("layers", 1), ("ffn_dim", 16), ("attention_heads", 2))}  # fmt: skip
    config = transformers.SeamlessM4Tv2Config(
        vocab_size=40, hidden_size=16, **decoder, speech_encoder_layers=1, speech_encoder_attention_heads=2,
        speech_encoder_intermediate_size=16, t2u_encoder_layers=1, t2u_decoder_layers=1, feature_projection_input_dim=8,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2,
    )  # fmt: skip
    model = randomised(transformers.SeamlessM4Tv2ForSpeechToText(config))
    model.generation_config.text_decoder_lang_to_code_id = {"eng": 30}
    return Family(model, {"input_features": features(40, 8), "tgt_lang": "eng"}, 2)


def speech_encoder_decoder():
    encoder = transformers.Wav2Vec2Config(
        **SMALL, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, vocab_size=32,
    )  # fmt: skip
    decoder = transformers.BartConfig(vocab_size=40, **BART, is_decoder=True, add_cross_attention=True)
    config = transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.update({"decoder_start_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False})
    model = randomised(transformers.SpeechEncoderDecoderModel(config))
    configured(model, decoder_start_token_id=0, pad_token_id=1, eos_token_id=2, bos_token_id=0)
    return Family(model, {"input_values": features(1600)}, 1)


def qwen3_asr():
    config = transformers.Qwen3ASRConfig(
        audio_config={"num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16,
                      "d_model": 16, "n_window": 50, "output_dim": 16, "n_window_infer": 100, "downsample_hidden_size": 8},
        text_config={**SMALL, "vocab_size": 40, "head_dim": 8, "num_key_value_heads": 2, "max_position_embeddings": 128},
        audio_token_id=38, timestamp_token_id=39, pad_token_id=1, eos_token_id=[2, 3],
    )  # fmt: skip
    tokens = [29, *[38] * 13, 30, 9, 9, 31]  # <|audio|>... language English<asr_text>
    inputs = {
        "input_ids": prompts(tokens), "attention_mask": torch.ones(2, len(tokens), dtype=torch.int64),
        "input_features": features(16, 100), "input_features_mask": torch.ones(2, 100, dtype=torch.int64),
    }  # fmt: skip
    model = randomised(transformers.Qwen3ASRForConditionalGeneration(config))
    configured(model, eos_token_id=[2], pad_token_id=1)
    return Family(model, inputs, len(tokens), settings={"tokenizer": Tokens(start=31)})


def granite_speech():
    config = transformers.GraniteSpeechConfig(
        text_config={"model_type": "granite", **SMALL, "vocab_size": 40, "num_key_value_heads": 2, "pad_token_id": 1,
                     "bos_token_id": 0, "eos_token_id": 2},
        encoder_config={"input_dim": 8, "num_layers": 1, "hidden_dim": 16, "num_heads": 2, "dim_head": 8, "context_size": 20,
                        "max_pos_emb": 32, "conv_kernel_size": 3, "output_dim": 8, "feedforward_mult": 2},
        projector_config={"model_type": "blip_2_qformer", **SMALL, "encoder_hidden_size": 16, "vocab_size": 40},
        audio_token_index=38, downsample_rate=5, window_size=15, has_lora_adapter=False,
    )  # fmt: skip
    tokens = [29, *[38] * 6, 9, 9, 30, 9, 31]
    inputs = {
        "input_ids": prompts(tokens), "attention_mask": torch.ones(2, len(tokens), dtype=torch.int64),
        "input_features": features(30, 8), "input_features_mask": torch.ones(2, 6, dtype=torch.bool),
    }  # fmt: skip
    model = randomised(transformers.GraniteSpeechForConditionalGeneration(config))
    configured(model, eos_token_id=2, pad_token_id=1)
    return Family(model, inputs, len(tokens), settings={"tokenizer": Tokens()})


def voxtral():
    config = transformers.VoxtralConfig(
        audio_config={"num_mel_bins": 8, "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 64,
                      "num_attention_heads": 2, "max_source_positions": 16, "vocab_size": 40},
        text_config={"model_type": "llama", **SMALL, "vocab_size": 40, "num_key_value_heads": 2, "head_dim": 8,
                     "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1},
        audio_token_id=38,
    )  # fmt: skip
    tokens = [0, 29, *[38] * 4, 30, 9, 9, 31]
    inputs = {
        "input_ids": prompts(tokens), "attention_mask": torch.ones(2, len(tokens), dtype=torch.int64),
        "input_features": features(8, 32),
    }  # fmt: skip
    model = randomised(transformers.VoxtralForConditionalGeneration(config))
    configured(model, eos_token_id=2, pad_token_id=1)
    return Family(model, inputs, len(tokens), settings={"start": 31})


def omniasr():
    config = transformers.OmniASRConfig(
        audio_config={**SMALL, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
                      "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2},
        text_config={"model_type": "llama", **SMALL, "vocab_size": 40, "num_key_value_heads": 2, "head_dim": 8,
                     "max_position_embeddings": 128},
        audio_token_id=38, bos_token_id=0, pad_token_id=1, eos_token_id=2,
    )  # fmt: skip
    tokens = [*[38] * 15, 37, 30, 0]  # <|audio|>..., a marker, a language, <s>
    inputs = {
        "input_ids": prompts(tokens), "attention_mask": torch.ones(2, len(tokens), dtype=torch.int64),
        "input_values": features(1, 160), "padding_mask": torch.ones(2, 160, dtype=torch.int64),
    }  # fmt: skip
    model = randomised(transformers.OmniASRForConditionalGeneration(config))
    configured(model, bos_token_id=0, eos_token_id=2, pad_token_id=1)
    return Family(model, inputs, len(tokens), settings={"tokenizer": Tokens()})


# Those of the installed Transformers.
FAMILIES = {
    make.__name__: make
    for make, name in (
        (whisper, "WhisperForConditionalGeneration"),
        (canary, "CanaryForConditionalGeneration"),
        (cohere_asr, "CohereAsrForConditionalGeneration"),
        (moonshine, "MoonshineForConditionalGeneration"),
        (moonshine_streaming, "MoonshineStreamingForConditionalGeneration"),
        (speech_to_text, "Speech2TextForConditionalGeneration"),
        (speecht5, "SpeechT5ForSpeechToText"),
        (seamless_m4t_v2, "SeamlessM4Tv2ForSpeechToText"),
        (speech_encoder_decoder, "SpeechEncoderDecoderModel"),
        (qwen3_asr, "Qwen3ASRForConditionalGeneration"),
        (granite_speech, "GraniteSpeechForConditionalGeneration"),
        (voxtral, "VoxtralForConditionalGeneration"),
        (omniasr, "OmniASRForConditionalGeneration"),
    )
    if hasattr(transformers, name)
}
