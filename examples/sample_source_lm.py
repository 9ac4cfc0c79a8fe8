"""Make a source domain's language model of what a decoder has learned, where the text that it was trained on isn't at hand.

    python examples/sample_source_lm.py MODEL my-lm source-lm
    hf-ngpulm tune MODEL dev.jsonl --lm my-lm --source-lm source-lm --source-weights 0.2:0.5:0.1 --num-beams 5

The decoder (Whisper, Canary or another with an encoder) is asked for sentences without having heard anything, token by token at
random. The n-gram model of them can be subtracted from a target domain's (`source_lm=`) in any recogniser over the same tokens,
for next to nothing; what the decoder says itself (`ilm_weight=`) costs a pass of the decoder at each step.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForSpeechSeq2Seq, AutoTokenizer

from hf_ngpulm import NGramLM
from hf_ngpulm.generation.internal import InternalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("lm", help="the language model that it will stand beside: both must be over the same token ids")
    parser.add_argument("output", help="folder for the new one")
    parser.add_argument("--sentences", type=int, default=6000)
    parser.add_argument("--order", type=int, default=4)
    parser.add_argument("--longest", type=int, default=40, help="tokens of a sentence")
    parser.add_argument("--batch-size", type=int, default=500)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = AutoModelForSpeechSeq2Seq.from_pretrained(args.model, dtype=torch.float32).eval()
    special = set(AutoTokenizer.from_pretrained(args.model).all_special_ids)
    vocab_size = NGramLM.from_pretrained(args.lm).vocab_size
    internal, texts = InternalLM(model), list[list[int]]()
    while len(texts) < args.sentences:
        rows = sampled(internal, model.generation_config, args.batch_size, args.longest)
        texts += [text for row in rows if (text := [token for token in row if token not in special and token < vocab_size])]
    NGramLM.from_texts(texts[: args.sentences], vocab_size=vocab_size, order=args.order).save_pretrained(args.output)


def sampled(internal: InternalLM, config: object, batch_size: int, longest: int) -> list[list[int]]:
    """Return sentences, control tokens before them included."""
    start, end = (getattr(config, name) for name in ("decoder_start_token_id", "eos_token_id"))
    rows = torch.full((batch_size, 1), start)
    for _ in range(longest):
        tokens = torch.multinomial(torch.softmax(internal.logits(rows), 1), 1)
        rows = torch.cat([rows, torch.where((rows[:, 1:] == end).any(1, keepdim=True), end, tokens)], 1)
        if bool((rows[:, 1:] == end).any(1).all()):
            break
    return [row[: row.index(end)] if end in row else row for row in rows[:, 1:].tolist()]


if __name__ == "__main__":
    main()
