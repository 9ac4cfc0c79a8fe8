"""What a language model in `generate` costs as it is usually done: KenLM, asked in Python for one text after the other.

Each row's tokens are made text, once for each of the row's best tokens, KenLM scores the whole of it, and what the token adds
is added to its score. The words of the LM are token ids here, as is the text of the tokenizer, so that both LMs say the same.
"""

from __future__ import annotations

import math
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from hf_ngpulm import NGramLM


class KenLMRescoring(transformers.LogitsProcessor):
    """Args:
        lm: the language model that KenLM is given, as an ARPA file.
        weight: of its log-probabilities.
        classes: of the model.
        ends: tokens that end a transcript.
        prompt_tokens: tokens before the transcript.
        candidates: tokens of each row that are scored.

    Raises:
        ImportError: there is no `kenlm` here.
    """  # fmt: skip

    def __init__(
        self, lm: NGramLM, weight: float, classes: int, ends: set[int], prompt_tokens: int = 0, candidates: int = 10
    ) -> None:
        import kenlm

        with TemporaryDirectory() as folder:
            lm.to_arpa(f"{folder}/lm.arpa", units="id")
            self.model = kenlm.Model(f"{folder}/lm.arpa")
        self.tokenizer = tokenizer_of(lm.vocab_size, classes)
        self.weight, self.ends, self.prompt_tokens, self.candidates = weight, ends, prompt_tokens, candidates

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        best = scores.topk(self.candidates).indices
        added = []
        for tokens, candidates in zip(input_ids[:, self.prompt_tokens :].tolist(), best.tolist()):
            before = self.score(tokens)
            added.append([self.weight * (self.score([*tokens, token]) - before) for token in candidates])
        return scores.scatter_add(1, best, torch.tensor(added, device=scores.device))

    def score(self, tokens: list[int]) -> float:
        """Natural logarithm."""
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return self.model.score(text, bos=True, eos=tokens[-1:] != [] and tokens[-1] in self.ends) * math.log(10)


def tokenizer_of(text_tokens: int, classes: int) -> Any:
    """Each of the first tokens is a word, its own id; the others are control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE({f"Ġ{token}": token for token in range(text_tokens)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(f"<|{token}|>", special=True) for token in range(text_tokens, classes)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
