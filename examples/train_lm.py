"""Train a language model for a speech recogniser from plain sentences, make it smaller, mix it, and see what each is worth.

python examples/train_lm.py
"""

from transformers import AutoTokenizer

from hf_ngpulm import NGramLM
from hf_ngpulm.common.bundled import bundled

demo = bundled("examples/speech/harbour")
tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
sentences = (demo / "text.txt").read_text(encoding="utf-8").splitlines()
held_out, texts = sentences[::10], [text for i, text in enumerate(sentences) if i % 10]

# Any iterable of sentences will do: a list, a generator over files, a column of a datasets.Dataset.
lm = NGramLM.from_texts(texts, tokenizer=tokenizer, order=6, prune=(0, 0, 1), valid=held_out)
print(f"trained on {lm.config.training.num_sentences:,} sentences: {sum(lm.num_ngrams):,} n-grams, {lm.nbytes:,} bytes")
print(f"perplexity of other sentences: {lm.config.training.perplexity_per_token:.2f} per token")

small = lm.prune(max_ngrams=5_000)
print(f"pruned to {sum(small.num_ngrams):,} n-grams: {small.perplexity(held_out, tokenizer).per_token:.2f}")

halves = [NGramLM.from_texts(part, tokenizer=tokenizer, order=4) for part in (texts[::2], texts[1::2])]
mixed = NGramLM.interpolate(halves, texts=held_out[:20], tokenizer=tokenizer)
print(f"two models of half the text each, mixed: {mixed.perplexity(held_out[20:], tokenizer).per_token:.2f}")

# lm.save_pretrained("my-lm"); lm.push_to_hub("org/my-lm"); pipeline(..., lm="org/my-lm")
