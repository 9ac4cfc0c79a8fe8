"""Define CTCNGramPipeline, which adds a language model and a beam for CTC models to Transformers' pipeline."""

from __future__ import annotations

from typing import Any

from ..decoding.ctc import CTCDecoder
from ..decoding.ctc_strategies import ctc_decoder
from ..decoding.families import is_ctc
from ..decoding.graph import GraphDecoder
from ..decoding.options import CTCOptions
from ..fusion.fusion import LM_WEIGHT
from .base import NGramPipeline, settings_of


class CTCNGramPipeline(NGramPipeline):
    """Recognise speech with CTC models and an n-gram language model or a beam search.

    Without `lm`, `phrases`, `rescorer`, `num_beams` and `confidence` the results are the same as in Transformers' pipeline.
    With any of these settings, whole batches are decoded on the model's device, without padding. Chunked long audio is decoded
    as a whole: the search and the LM's context continue across chunks. Inputs, batching and chunking are as in Transformers'
    pipeline.

    Besides the arguments of all families (see `NGramPipeline`), `pipeline(...)` and calls take:

    Args:
        num_beams: number of prefixes in the beam; 1 is greedy search, "auto" is 4. The default is "auto" with `lm` or `phrases`
            (for all recordings of a call), otherwise 1.
        strategy: "graph" searches the LM's graph instead of prefixes, see `hf_ngpulm.GraphDecoder`; `num_beams` is then the
            number of hypotheses in the graph (default 64), and `phrase_weight` is the discount of phrases without their own
            discount (default 1).
        beta, beam_threshold, blank_threshold, score_eos, merge, repeats, lm_guard, engine: as for `hf_ngpulm.CTCDecoder`.

    `return_timestamps="word"` and `"char"` work with all tokenizers ("char" returns single tokens).
    """

    serves = staticmethod(is_ctc)
    settings = (*NGramPipeline.settings, "strategy", "false_alarms_per_hour", "thresholds", *settings_of(CTCOptions))
    reasons = ("lm", "phrases", "rescorer", "num_beams", "confidence")
    of_an_lm = NGramPipeline.of_an_lm | {"repeats", "score_eos", "strategy", "lm_guard"}
    shared_with_generation = ("num_beams", "num_return_sequences")

    takes_what_lms_come_with = True

    def _make_decoder(self, settings: dict[str, Any]) -> CTCDecoder | GraphDecoder:
        defaults = {"confidence": None, "lm_weight": LM_WEIGHT}  # tuned settings are among them
        blank_id = getattr(self.model.config, "blank_token_id", None)
        of_model = {"frame_seconds": self._frame_seconds, "blank_id": blank_id}
        return ctc_decoder(self.tokenizer, **{**defaults, **settings, **of_model})
