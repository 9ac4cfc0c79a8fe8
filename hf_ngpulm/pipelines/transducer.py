"""Define TransducerNGramPipeline, which adds a language model and a beam for transducers to Transformers' pipeline."""

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
    """Recognise speech with transducers (Parakeet RNN-T and TDT, Nemotron) and an n-gram language model or a beam search.

    Without `lm`, `phrases`, `rescorer`, `num_beams`, `strategy`, `pause_seconds` and `confidence` the results are the same as
    in Transformers' pipeline. With any of these settings, whole batches are decoded at once, without padding. Chunked long
    audio is decoded as a whole: the prediction network and the LM continue across chunks. Inputs, batching and chunking are as
    in Transformers' pipeline.

    Besides the arguments of all families (see `NGramPipeline`), `pipeline(...)` and calls take:

    Args:
        num_beams: number of hypotheses in the beam; 1 is greedy search, "auto" is 3. The default is "auto" with `lm` or
            `phrases` (for all recordings of a call), otherwise 1.
        strategy: "greedy", "alsd" (beam search, the default with beams) or "aes" (beam search for RNN-T).
        max_symbols, ilm_weight, blank_scoring, pruning, merging, length_normalization: as for `hf_ngpulm.TransducerDecoder`.
        score_eos, aes_steps, aes_beta, aes_gamma, pause_seconds, lm_guard, engine: also as for `hf_ngpulm.TransducerDecoder`.

    `return_timestamps="word"` or `"char"` returns the times of the frames at which tokens were emitted ("char" returns single
    tokens).
    """

    serves = staticmethod(is_transducer)
    settings = (*NGramPipeline.settings, "false_alarms_per_hour", "thresholds", *settings_of(TransducerOptions))
    reasons = ("lm", "phrases", "rescorer", "num_beams", "strategy", "pause_seconds", "confidence")
    of_an_lm = NGramPipeline.of_an_lm | {"blank_scoring", "score_eos", "lm_guard"}
    shared_with_generation = ("num_beams", "num_return_sequences")

    def _make_decoder(self, settings: dict[str, Any]) -> TransducerDecoder:
        defaults = {"confidence": None, "lm_weight": LM_WEIGHT}  # tuned settings are among them
        return TransducerDecoder(self.model, self.tokenizer, **{**defaults, **settings}, frame_seconds=self._frame_seconds)

    def _frames(self, model_inputs: dict[str, Any], **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        for_encoder = {name: kwargs[name] for name in _FOR_THE_ENCODER if name in kwargs}
        idle = sorted(kwargs.keys() - set(_FOR_THE_ENCODER) - {"return_timestamps", "return_language"})
        if idle:
            raise ValueError(
                f"{', '.join(idle)}: settings of generate, which isn't used with {'=, '.join(self.reasons)}=; leave them out"
            )
        return super()._frames(model_inputs, **for_encoder)
