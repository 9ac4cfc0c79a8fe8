"""Provide pyctcdecode's API on this package's engine. To run an existing script, change one import.

    from hf_ngpulm.compat import build_ctcdecoder      # was: from pyctcdecode import build_ctcdecoder

    decoder = build_ctcdecoder(labels, "words.arpa", alpha=0.5, beta=1.5)
    text = decoder.decode(logits)

The word-level model is composed with the spellings of its words into a model over labels (`hf_ngpulm.lexicon`). Prefix beam
search decodes with this model. The score of a sentence follows pyctcdecode's formula,

    log p(outputs) + sum over its words of (alpha * ln 10 * (log10 p(word) [+ unk_score_offset]) + beta) [+ hotwords]

but the search differs. pyctcdecode adds a word's score when the word ends. Here each label adds its share of the word's score,
so the search drops unlikely words sooner, and a narrower beam suffices. The documentation lists all differences under "From
pyctcdecode".

Transformers' pipeline accepts such a decoder before version 6 (`pipeline(..., decoder=...)`), but prefer to pass the language
model as `lm=`. If `stand_in` was called, Transformers' `Wav2Vec2ProcessorWithLM` accepts this package's decoders; otherwise it
accepts only pyctcdecode's own. `NGramLM.from_wav2vec2_with_lm` reads the repos of `Wav2Vec2ProcessorWithLM`.
"""

import importlib
import sys

from ..formats.wav2vec2.alphabet import Alphabet, verify_alphabet_coverage
from .decoder import BeamSearchDecoderCTC, OutputBeam, OutputBeamMPSafe, build_ctcdecoder
from .language_model import HotwordScorer, LanguageModel, MultiLanguageModel, load_unigram_set_from_arpa

__all__ = [
    "Alphabet",
    "BeamSearchDecoderCTC",
    "HotwordScorer",
    "LanguageModel",
    "MultiLanguageModel",
    "OutputBeam",
    "OutputBeamMPSafe",
    "build_ctcdecoder",
    "load_unigram_set_from_arpa",
    "stand_in",
    "verify_alphabet_coverage",
]

# Modules of pyctcdecode, and the modules here that replace them.
MODULES = {
    "alphabet": "hf_ngpulm.formats.wav2vec2.alphabet",
    "constants": "hf_ngpulm.formats.wav2vec2.constants",
    "decoder": "hf_ngpulm.compat.decoder",
    "language_model": "hf_ngpulm.compat.language_model",
}


def stand_in() -> None:
    """Make `import pyctcdecode` return this package, in this process.

    Call this function before `Wav2Vec2ProcessorWithLM(feature_extractor, tokenizer, decoder)` of Transformers, because this
    class imports pyctcdecode and refuses decoders of another class. `Wav2Vec2ProcessorWithLM.from_pretrained` also checks that
    pyctcdecode and kenlm are installed. Without these packages, make the decoder with `BeamSearchDecoderCTC.load_from_hf_hub`,
    and pass the decoder to the constructor.

    Raises:
        RuntimeError: pyctcdecode itself has already been imported.
    """
    package = sys.modules[__name__]
    if sys.modules.get("pyctcdecode", package) is not package:
        raise RuntimeError("pyctcdecode has been imported already: call stand_in() before anything imports it")
    sys.modules["pyctcdecode"] = package
    for name, module in MODULES.items():
        sys.modules[f"pyctcdecode.{name}"] = importlib.import_module(module)
