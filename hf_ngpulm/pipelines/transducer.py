"""TransducerNGramPipeline: the stock speech recognition pipeline, with a language model or a beam for RNN-T and TDT."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..decoding.families import is_transducer
from ..decoding.options import TransducerOptions
from ..decoding.transducer import TransducerDecoder
from ..fusion.fusion import LM_WEIGHT
from .base import NGramPipeline, settings_of

_FOR_THE_ENCODER = ("prompt_ids", "num_lookahead_tokens")


class TransducerNGramPipeline(NGramPipeline):
    """Speech recognition with an n-gram language model, or a beam search, for transducers: Parakeet RNN-T and TDT, Nemotron.

    Without `lm`, `num_beams`, `strategy`, `pause_seconds` and `confidence` this is the pipeline of Transformers. With one,
    whole batches are decoded at once, padding is left out, and long audio cut in chunks is decoded in one go over the encoder's
    frames, so that the prediction network and the LM run on over the seams. All else (inputs, batching, chunking) is the stock
    pipeline's.

    Besides what all families take (see `NGramPipeline`), `pipeline(...)` and calls take:

    Args:
        num_beams: hypotheses that the search keeps; 1 searches greedily, "auto" keeps 3. The default is "auto" with `lm` or
            `phrases`, for all recordings of a call alike; else 1.
        strategy: "greedy", "alsd" (beam search, the default with beams) or "aes" (beam search for RNN-T).
        max_symbols, ilm_weight, blank_scoring, pruning, merging, length_normalization: as for `hf_ngpulm.TransducerDecoder`.
        score_eos, aes_steps, aes_beta, aes_gamma, pause_seconds, engine: the same.

    `return_timestamps="word"` or `"char"` gives times from the frames at which tokens were emitted ("char": single tokens).
    """

    serves = staticmethod(is_transducer)
    settings = (*NGramPipeline.settings, *settings_of(TransducerOptions))
    reasons = ("lm", "phrases", "num_beams", "strategy", "pause_seconds", "confidence")
    of_an_lm = NGramPipeline.of_an_lm | {"blank_scoring", "score_eos"}
    shared_with_generation = ("num_beams", "num_return_sequences")

    def _make_decoder(self, settings: dict[str, Any]) -> TransducerDecoder:
        defaults = {"confidence": None, "lm_weight": LM_WEIGHT}  # what is remembered is among the settings
        return TransducerDecoder(self.model, self.tokenizer, **{**defaults, **settings}, frame_seconds=self._frame_seconds)

    def _frames(self, model_inputs: dict[str, Any], **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        for_encoder = {name: kwargs[name] for name in _FOR_THE_ENCODER if name in kwargs}
        idle = sorted(kwargs.keys() - set(_FOR_THE_ENCODER) - {"return_timestamps", "return_language"})
        if idle:
            raise ValueError(
                f"{', '.join(idle)}: settings of generate, which {'=, '.join(self.reasons)}= replace; leave them out"
            )
        return super()._frames(model_inputs, **for_encoder)
