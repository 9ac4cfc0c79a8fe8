"""Attention decoders of real sizes with random weights, with what their `generate` takes, for timing steps.

A decoder's time doesn't depend on its weights. Encoders have one layer, whose output alone is needed: random numbers for
Whisper (1,500 frames, as ever), what the encoder makes of noise for Canary (10 s).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

# hidden size, decoder layers, heads, vocabulary
WHISPERS = {
    "tiny": (384, 4, 6, 51865),
    "base": (512, 6, 8, 51865),
    "small": (768, 12, 12, 51865),
    "medium": (1024, 24, 16, 51865),
    "large-v3": (1280, 32, 20, 51866),
    "none": (16, 1, 2, 64),  # no size that there is: to see that benchmarks run
}
TEXT_TOKENS = 50257  # of Whisper; behind these stand </s>, <|startoftranscript|>, and others
NAMES = (*(f"whisper-{size}" for size in WHISPERS), "canary", "qwen-head")
PROMPT_TOKENS = 20  # of the LLM; a recording's are more, but reading them is no step


@dataclass
class Subject:
    """A model.

    Args:
        encoded: called with a batch size: what `generate` takes. Anew for each call: beam search changes what it is given.
        text_tokens: its tokens below this id are text.
        start: as for `NGramLogitsProcessor`.
        prompt_tokens: what stands before the transcript, where that is no control token.
    """

    model: Any
    encoded: Callable[[int], dict[str, Any]]
    text_tokens: int
    start: list[int] | None = None
    prompt_tokens: int = 0


def subject_of(name: str, device: str, dtype: torch.dtype) -> Subject:
    torch.manual_seed(0)
    if name not in NAMES:
        raise ValueError(f"models are {', '.join(NAMES)}; got {name!r}")
    if name.startswith("whisper-"):
        return whisper(name.removeprefix("whisper-"), device, dtype)
    return (canary if name == "canary" else qwen_head)(device, dtype)


def made(kind: Any, config: Any, device: str, dtype: torch.dtype) -> Any:
    with torch.device(device):
        return kind(config).eval().to(device, dtype)


def whisper(name: str, device: str, dtype: torch.dtype) -> Subject:
    size, layers, heads, vocab_size = WHISPERS[name]
    text, no_timestamps = (TEXT_TOKENS, TEXT_TOKENS + 106) if vocab_size > TEXT_TOKENS else (vocab_size - 9, vocab_size - 3)
    config = transformers.WhisperConfig(
        vocab_size=vocab_size, d_model=size, encoder_layers=1, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * size, decoder_ffn_dim=4 * size, pad_token_id=text,
        bos_token_id=text, eos_token_id=text, decoder_start_token_id=text + 1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = made(transformers.WhisperForConditionalGeneration, config, device, dtype)
    model.generation_config.no_timestamps_token_id = no_timestamps
    model.generation_config.force_unique_generate_call = True  # one window, whatever timestamps it dreams of

    def encoded(batch_size: int) -> dict[str, Any]:
        hidden = torch.randn(batch_size, 1500, size, device=device, dtype=dtype)
        return {"encoder_outputs": transformers.modeling_outputs.BaseModelOutput(hidden)}

    return Subject(model, encoded, text)


def canary(device: str, dtype: torch.dtype) -> Subject:
    config = transformers.CanaryConfig()
    config.encoder_config.num_hidden_layers = 1
    model = made(transformers.CanaryForConditionalGeneration, config, device, dtype)

    def encoded(batch_size: int) -> dict[str, Any]:
        features = torch.randn(batch_size, 1000, config.encoder_config.num_mel_bins, device=device, dtype=dtype)
        mask = torch.ones(batch_size, 1000, dtype=torch.int64, device=device)
        return {"encoder_outputs": model.get_encoder()(features, mask, output_attention_mask=True)}

    return Subject(model, encoded, config.vocab_size)


def qwen_head(device: str, dtype: torch.dtype) -> Subject:
    """The decoder of Qwen3-ASR-0.6B with 4 of its 28 layers: its vocabulary is what matters here."""
    config = transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, eos_token_id=151645, pad_token_id=151643,
    )  # fmt: skip
    model = made(transformers.Qwen3ForCausalLM, config, device, dtype)

    def prompts(batch_size: int) -> dict[str, Any]:
        tokens = torch.randint(0, 151643, (batch_size, PROMPT_TOKENS), device=device)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    return Subject(model, prompts, 151643, start=[], prompt_tokens=PROMPT_TOKENS)


def texts(text_tokens: int) -> list[list[int]]:
    """Token ids as frequent as words are (Zipf), each at least once."""
    generator = torch.Generator().manual_seed(0)
    ranks = (torch.rand(20_000, 20, generator=generator).double() * torch.tensor(text_tokens).log()).exp().long()
    every = torch.arange(text_tokens).split(20)
    return [*(ranks - 1).clamp(min=0).tolist(), *(row.tolist() for row in every)]
