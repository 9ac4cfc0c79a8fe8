"""Tiny causal language models with random weights, and their tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
)  # fmt: skip

LETTERS = [*"abcdefghijklmnopqrstuvwxyz' \n"]
SPECIAL = ["<unk>", "<s>", "</s>"]


def letters_tokenizer() -> Any:
    """A tokenizer of pairs of letters, and letters."""
    pieces = [*SPECIAL, *LETTERS, "th", "he", "an", "in", "er", "ou"]
    merges = [tuple(piece) for piece in pieces if len(piece) == 2]
    bpe = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges, unk_token="<unk>"))
    bpe.decoder = decoders.Fuse()
    bpe.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def causal_lm(kind: str = "llama", seed: int = 0) -> Any:
    """A model with weights large enough that its scores differ."""
    size, wide = len(letters_tokenizer()), {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(seed)
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(vocab_size=size, intermediate_size=64, initializer_range=0.3, **wide))
    elif kind == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=512, initializer_range=0.3)
        )
    elif kind == "bloom":
        model = BloomForCausalLM(BloomConfig(vocab_size=size, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3))
    elif kind == "mamba":
        model = MambaForCausalLM(
            MambaConfig(vocab_size=size, hidden_size=32, num_hidden_layers=2, state_size=4, initializer_range=0.3)
        )
    else:
        model = BertLMHeadModel(BertConfig(vocab_size=size, intermediate_size=64, initializer_range=0.3, **wide))
    return model.eval()
