"""Ask a language model directly: full-vocabulary scores for a batch of hypotheses, and where each token leads.

python examples/query_lm.py
"""

import tempfile
from pathlib import Path

import torch
from transformers import AutoTokenizer

from hf_ngpulm import NGramLM

examples = Path(__file__).parent
speech = examples / "speech" / "harbour"
tokenizer = AutoTokenizer.from_pretrained(examples / "models" / "ctc")
lm = NGramLM.from_arpa(speech / "lm.arpa.gz", tokenizer=tokenizer)
print(f"order {lm.order}, {sum(lm.num_ngrams)} n-grams, {lm.nbytes} bytes")

states = lm.initial_states(batch_size=2)  # after <s>
token_ids = torch.tensor(tokenizer(["call the", "set a"], add_special_tokens=False, padding=True)["input_ids"])
for column in token_ids.T:
    _, states = lm.step(states, column)  # padding is no token of the LM: it leaves a state as it is
scores, next_states = lm.advance(states)  # [2, V] each
for row, text in enumerate(("call the", "set a")):
    best = scores[row].topk(3)
    shown = ", ".join(
        f"{tokenizer.convert_ids_to_tokens(int(token))!r} {value:.2f}" for value, token in zip(best.values, best.indices)
    )
    print(f"after {text!r}: {shown}")

with tempfile.TemporaryDirectory() as folder:  # or lm.push_to_hub("org/my-lm")
    lm.save_pretrained(folder)  # config.json, model.safetensors and a model card
    assert torch.equal(NGramLM.from_pretrained(folder).scores(states), scores)
