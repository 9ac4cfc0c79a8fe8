"""The tokenizer of all models: BPE of 256 pieces, learned from the training text, with each family's special tokens after."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

NUM_PIECES = 256
CANARY_TOKENS = ("<|bos|>", "<|endoftext|>", "<pad>", "<|startoftranscript|>")


def learn(sentences: list[str]) -> Tokenizer:
    """Pieces 0 to 255; 0 is `<unk>`."""
    tokenizer = _empty(models.BPE(unk_token="<unk>", fuse_unk=True))
    trainer = trainers.BpeTrainer(vocab_size=NUM_PIECES, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def _empty(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    return tokenizer


def for_transformers(pieces: Path, kind: str) -> PreTrainedTokenizerFast:
    """The tokenizer as a model of this kind needs it: "ctc", "rnnt", "tdt", "canary", "hat" or "stateless"."""
    from transformers import ParakeetTokenizer

    tokenizer = Tokenizer.from_file(str(pieces))
    if kind == "canary":
        bos, eos, pad, start = CANARY_TOKENS
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CANARY_TOKENS])
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, unk_token="<unk>", bos_token=bos, eos_token=eos, pad_token=pad,
            additional_special_tokens=[start],
        )  # fmt: skip
    behind = {"ctc": ["<pad>"], "tdt": ["<pad>", "<blank>"]}.get(kind, ["<blank>"])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in behind])
    return ParakeetTokenizer(tokenizer_object=tokenizer, unk_token="<unk>", pad_token=behind[0])
