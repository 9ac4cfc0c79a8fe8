"""CTCNGramPipeline: the stock speech recognition pipeline, with a language model or a beam for CTC models."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..decoding.ctc import CTCDecoder
from ..decoding.graph import GraphDecoder, ctc_decoder
from ..decoding.hypotheses import Hypothesis
from ..decoding.options import CTCOptions
from ..fusion.fusion import LM_WEIGHT
from .base import NGramPipeline, settings_of
from .families import frame_lengths, is_ctc


class CTCNGramPipeline(NGramPipeline):
    """Speech recognition with an n-gram language model, or a beam search, for CTC models.

    Without `lm`, `num_beams` and `confidence` this is the pipeline of Transformers. With one, whole batches are decoded on the
    model's device, padding is left out, and long audio cut in chunks is decoded in one go, so that the search and the LM's
    context run on over the seams. All else (inputs, batching, chunking) is the stock pipeline's.

    The following are taken both by `pipeline(...)` and by a call, where they hold for that call only:

    Args:
        lm: an `NGramLM`; the id of a Hub repo or a folder with one, or with the LM of a `Wav2Vec2ProcessorWithLM`; or an ARPA
            (`.arpa`, `.arpa.gz`), KenLM (`.bin`) or NeMo (`.nemo`) file. None decodes without. A list has one, or None, for
            each recording of the call.
        lm_weight: weight of the LM's log-probabilities; a list or a tensor has one for each recording. By default what was
            tuned for the model and stands in the LM's config, with the rest of what was tuned; or what the LM came with, if it
            is that of a `Wav2Vec2ProcessorWithLM`; or else 0.5.
        phrases: phrases that shall be recognised: a list of texts, or of pairs of a text and a weight, or a
            `hf_ngpulm.PhraseBooster`; or a list with one of these, or None, for each recording of the call.
        phrase_weight: what their bonuses are multiplied with (default 1); a list or a tensor has one for each recording.
        num_beams: prefixes that the search keeps; 1 (the default) searches greedily.
        strategy: "graph" searches in the LM's graph in place of prefixes, see `hf_ngpulm.GraphDecoder`: `num_beams` are then
            the hypotheses that it keeps (by default 64), and `phrase_weight` the discount of phrases without one of their own
            (by default 1).
        num_return_sequences: above 1, results have a list `hypotheses` of so many transcripts with their scores.
        confidence: a measure (see `hf_ngpulm.search.confidence`); the chunks that `return_timestamps` gives then have a
            `confidence`.
        beta, beam_threshold, blank_threshold, score_eos, merge, repeats, engine: as for `hf_ngpulm.CTCDecoder`.

    `return_timestamps="word"` or `"char"` works with all tokenizers ("char" gives single tokens).

    Raises:
        ValueError: lists for another number of recordings, weights and rules without an LM, settings out of range.
        TokenizerMismatchError: the LM was made for another tokenizer.
    """

    serves = staticmethod(is_ctc)
    settings = (*NGramPipeline.settings, "strategy", *settings_of(CTCOptions))
    reasons = ("lm", "phrases", "num_beams", "confidence")
    of_an_lm = frozenset({"lm_weight", "repeats", "score_eos", "strategy"})
    shared_with_generation = ("num_beams", "num_return_sequences")

    takes_what_lms_come_with = True

    def _make_decoder(self, settings: dict[str, Any]) -> CTCDecoder | GraphDecoder:
        defaults = {"confidence": None, "lm_weight": LM_WEIGHT}  # what is remembered is among the settings
        return ctc_decoder(self.tokenizer, **{**defaults, **settings, "frame_seconds": self._frame_seconds})

    def _frames(self, model_inputs: dict[str, Any], **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        attention_mask = model_inputs.pop("attention_mask", None)
        inputs = {self.model.main_input_name: model_inputs.pop(self.model.main_input_name), "attention_mask": attention_mask}
        logits = self.model(**inputs).logits
        return logits, None if attention_mask is None else frame_lengths(self.model, attention_mask.sum(-1).long())

    def _decode(self, decoder: CTCDecoder | GraphDecoder, frames: Tensor, lengths: Tensor | None) -> list[list[Hypothesis]]:
        return decoder(frames, lengths)
