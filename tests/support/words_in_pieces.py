"""A tokenizer of eight pieces, with marks where words begin."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def pieces():
    vocabulary = [
        ("<unk>", -20.0),
        ("▁a", -1.0),
        ("▁b", -1.0),
        ("a", -2.0),
        ("b", -2.0),
        ("▁ab", -1.5),
        (",", -1.0),
        ("▁", -9.0),
    ]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
