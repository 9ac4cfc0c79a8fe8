"""A generation strategy for decoders with attention: `seq2seq_generate` owns the loop of `model.generate`.

A step is the same in every search: the model's scores of the next token (`model`), what processors and the language model make
of them (`states`), a choice (`greedy`, `beam`), and the language model's states after it.
"""

from .strategy import seq2seq_generate

__all__ = ["seq2seq_generate"]
