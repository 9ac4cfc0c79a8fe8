"""pyctcdecode's API on this package's engine: scripts run with one changed import.

    from hf_ngpulm.compat import build_ctcdecoder      # was: from pyctcdecode import build_ctcdecoder

    decoder = build_ctcdecoder(labels, "words.arpa", alpha=0.5, beta=1.5)
    text = decoder.decode(logits)

The word-level model is composed with the spellings of its words into one over labels (`hf_ngpulm.lexicon`), with which prefix
beam search decodes. A sentence scores what pyctcdecode's formula gives it,

    log p(outputs) + sum over its words of (alpha * ln 10 * (log10 p(word) [+ unk_score_offset]) + beta) [+ hotwords]

but the search differs: here each label adds its share of the word's score, so unlikely words are dropped sooner and a narrower
beam suffices; pyctcdecode scores a word when it ends. See "From pyctcdecode" in the documentation for arguments and
differences.

Transformers' pipeline takes such a decoder until its version 6 (`pipeline(..., decoder=...)`; better give it a language model
as `lm=`). Its `Wav2Vec2ProcessorWithLM` asks whether a decoder is of pyctcdecode's own class, and takes it after `stand_in`.
`NGramLM.from_wav2vec2_with_lm` reads the repos of such processors.
"""

import importlib
import sys

from ..formats.wav2vec2.alphabet import Alphabet, verify_alphabet_coverage
from .decoder import Beam, BeamSearchDecoderCTC, LMBeam, OutputBeam, OutputBeamMPSafe, build_ctcdecoder
from .language_model import HotwordScorer, LanguageModel, MultiLanguageModel, load_unigram_set_from_arpa

__all__ = [
    "Alphabet",
    "Beam",
    "BeamSearchDecoderCTC",
    "HotwordScorer",
    "LMBeam",
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
    """Let `import pyctcdecode` find this package's decoder, in this process.

    For Transformers' `Wav2Vec2ProcessorWithLM(feature_extractor, tokenizer, decoder)`, which imports pyctcdecode and refuses
    decoders of another class. Its `from_pretrained` asks besides whether pyctcdecode and kenlm are installed: there make the
    decoder with `BeamSearchDecoderCTC.load_from_hf_hub`, and the processor of its parts.

    Raises:
        RuntimeError: pyctcdecode itself has been imported already.
    """
    package = sys.modules[__name__]
    if sys.modules.get("pyctcdecode", package) is not package:
        raise RuntimeError("pyctcdecode has been imported already: call stand_in() before anything imports it")
    sys.modules["pyctcdecode"] = package
    for name, module in MODULES.items():
        sys.modules[f"pyctcdecode.{name}"] = importlib.import_module(module)
