"""A generation strategy for decoders with attention: `seq2seq_generate` owns the loop of `model.generate`.

Each step of a search: the model scores the next token (`model`), processors and the language model change the scores
    (`states`), tokens are chosen (`greedy`, `beam`), and the language model's states advance.
"""

from .strategy import seq2seq_generate

__all__ = ["seq2seq_generate"]
