"""CTCNGramPipeline: the stock speech recognition pipeline, with a language model or a beam for CTC models."""

from __future__ import annotations

from typing import Any

from ..decoding.ctc import CTCDecoder
from ..decoding.families import is_ctc
from ..decoding.graph import GraphDecoder, ctc_decoder
from ..decoding.options import CTCOptions
from ..fusion.fusion import LM_WEIGHT
from .base import NGramPipeline, settings_of


class CTCNGramPipeline(NGramPipeline):
    """Speech recognition with an n-gram language model, or a beam search, for CTC models.

    Without `lm`, `num_beams` and `confidence` this is the pipeline of Transformers. With one, whole batches are decoded on the
    model's device, padding is left out, and long audio cut in chunks is decoded in one go, so that the search and the LM's
    context run on over the seams. All else (inputs, batching, chunking) is the stock pipeline's.

    Besides what all families take (see `NGramPipeline`), `pipeline(...)` and calls take:

    Args:
        num_beams: prefixes that the search keeps; 1 searches greedily, "auto" keeps 4. The default is "auto" with `lm` or
            `phrases`, for all recordings of a call alike; else 1.
        strategy: "graph" searches in the LM's graph in place of prefixes, see `hf_ngpulm.GraphDecoder`: `num_beams` are then
            the hypotheses that it keeps (by default 64), and `phrase_weight` the discount of phrases without one of their own
            (by default 1).
        beta, beam_threshold, blank_threshold, score_eos, merge, repeats, engine: as for `hf_ngpulm.CTCDecoder`.

    `return_timestamps="word"` or `"char"` works with all tokenizers ("char" gives single tokens).
    """

    serves = staticmethod(is_ctc)
    settings = (*NGramPipeline.settings, "strategy", *settings_of(CTCOptions))
    reasons = ("lm", "phrases", "num_beams", "confidence")
    of_an_lm = NGramPipeline.of_an_lm | {"repeats", "score_eos", "strategy"}
    shared_with_generation = ("num_beams", "num_return_sequences")

    takes_what_lms_come_with = True

    def _make_decoder(self, settings: dict[str, Any]) -> CTCDecoder | GraphDecoder:
        defaults = {"confidence": None, "lm_weight": LM_WEIGHT}  # what is remembered is among the settings
        return ctc_decoder(self.tokenizer, **{**defaults, **settings, "frame_seconds": self._frame_seconds})
