"""Under pyctcdecode's own name, for programs whose imports can't be changed."""

from __future__ import annotations

import importlib
import sys

# Modules of pyctcdecode, and those here that have their names.
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
    package = importlib.import_module(__package__)
    if sys.modules.get("pyctcdecode", package) is not package:
        raise RuntimeError("pyctcdecode has been imported already: call stand_in() before anything imports it")
    sys.modules["pyctcdecode"] = package
    for name, module in MODULES.items():
        sys.modules[f"pyctcdecode.{name}"] = importlib.import_module(module)
