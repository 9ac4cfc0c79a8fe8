"""Define the generation strategy for decoders with attention: `seq2seq_generate` replaces the loop of `model.generate`.

In each step of a search the model scores the next token (`model`), processors and the language model change the scores
(`states`), the search chooses tokens (`greedy`, `beam`), and the language model's states advance.
"""

from .strategy import seq2seq_generate

__all__ = ["seq2seq_generate"]
