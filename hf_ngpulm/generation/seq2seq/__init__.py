"""Define the generation strategy for decoders with attention: `seq2seq_generate` replaces the loop of `model.generate`.

Each step of a search has four parts. The model scores the next token (`model`). Processors and the language model change the
scores (`states`). The search chooses tokens (`greedy`, `beam`). The language model's states advance.
"""

from .strategy import seq2seq_generate

__all__ = ["seq2seq_generate"]
