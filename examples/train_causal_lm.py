"""Train a small Transformer language model on sentences, as a rescorer of n-best lists.

python examples/train_causal_lm.py sentences.txt --output small-lm
hf-ngpulm transcribe clip.wav --model MODEL --lm LM --num-beams 8 --rescorer small-lm

A few thousand sentences take minutes on a CPU. Every tenth sentence is held out; the model with the lowest loss there is saved.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BATCH, IGNORED = 32, -100
END = "</s>"  # begins and ends each sentence


def tokenizer_of(sentences: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer that is trained on sentences. It can write any text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(sentences, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END, eos_token=END, pad_token=END)


def loss_of(model: LlamaForCausalLM, rows: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean negative log-probability per token of sentences, each int64 `[L]`."""
    labels = pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    return model(input_ids=labels.clamp(min=0), attention_mask=labels != IGNORED, labels=labels).loss


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, rows: list[torch.Tensor]) -> float:
    model.eval()
    batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
    tokens = [sum(len(row) - 1 for row in batch) for batch in batches]
    return sum(float(loss_of(model, batch)) * size for batch, size in zip(batches, tokens)) / sum(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", nargs="+", type=Path, help="files with a sentence on each line")
    parser.add_argument("--output", required=True, help="folder for the model")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--size", type=int, default=256, help="of the hidden states")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=2000)
    args = parser.parse_args()
    torch.manual_seed(0)
    sentences = [line.strip() for text in args.texts for line in text.read_text(encoding="utf-8").splitlines() if line.strip()]
    held_out, chosen = sentences[::10], [sentence for i, sentence in enumerate(sentences) if i % 10]
    if not held_out or not chosen:
        parser.error(f"{len(sentences)} sentences are too few; at least two are needed")
    tokenizer = tokenizer_of(chosen, args.vocab_size)
    rows, other_rows = (
        [torch.tensor(tokenizer(f"{END}{text}{END}").input_ids) for text in texts] for texts in (chosen, held_out)
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=args.size, intermediate_size=3 * args.size, num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.size // 64), bos_token_id=0, eos_token_id=0, attention_dropout=0.1,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    steps = args.epochs * math.ceil(len(rows) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    best = math.inf
    for epoch in range(args.epochs):
        model.train()
        shuffled = torch.randperm(len(rows)).tolist()
        for first in tqdm(range(0, len(rows), BATCH), desc=f"epoch {epoch + 1} of {args.epochs}", leave=False):
            loss = loss_of(model, [rows[i] for i in shuffled[first : first + BATCH]])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        loss = held_out_loss(model, other_rows)
        print(f"epoch {epoch + 1}: perplexity of held-out sentences {math.exp(loss):.1f} per token", flush=True)
        if loss < best:
            best = loss
            model.save_pretrained(args.output)
            tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()
