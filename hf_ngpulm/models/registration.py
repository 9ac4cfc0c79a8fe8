"""Register this package's models with Transformers' auto classes. A model is registered as soon as Transformers loads the
module that the model needs.

If a module of this package is imported first, the import may load the needed module of Transformers. At that time this
package's module is incomplete. So each module registers its own classes at its end.
"""

from __future__ import annotations

import importlib
from typing import Any

import transformers

# Configurations, the module and name of each model, and the auto class for its task.
MODELS = (
    ("HatConfig", "transducers", "HatForASR", "AutoModelForRNNT"),
    ("StatelessTransducerConfig", "transducers", "StatelessTransducerForASR", "AutoModelForRNNT"),
    ("WhisperTopConfig", "whisper_top", "WhisperTopEncoder", None),
    ("WhisperTopCTCConfig", "whisper_top", "WhisperTopForCTC", "AutoModelForCTC"),
    ("WhisperTopRNNTConfig", "whisper_top", "WhisperTopForRNNT", "AutoModelForRNNT"),
    ("WhisperTopTDTConfig", "whisper_top", "WhisperTopForTDT", "AutoModelForTDT"),
)


def register() -> None:
    """Register all classes. Repeated calls are harmless."""
    register_configurations()
    register_feature_extractors()
    register_tokenizers()
    register_models()


def register_configurations() -> None:
    """Register the configurations."""
    for config, *_ in MODELS:
        for loaded in _loaded("configuration", config):
            transformers.AutoConfig.register(loaded.model_type, loaded, exist_ok=True)


def register_feature_extractors() -> None:
    """Register the feature extractors."""
    for name, module, *_ in MODELS:
        for config in _loaded("configuration", name):
            own = module == "whisper_top"
            for extractor in _loaded(module, "WhisperTopFeatureExtractor") if own else [transformers.ParakeetFeatureExtractor]:
                transformers.AutoFeatureExtractor.register(config, extractor, exist_ok=True)


def register_tokenizers() -> None:
    """Register the tokenizer class."""
    for name, *_ in MODELS:
        for config in _loaded("configuration", name):
            transformers.AutoTokenizer.register(
                config, fast_tokenizer_class=transformers.PreTrainedTokenizerFast, exist_ok=True
            )


def register_models() -> None:
    """Register the models, also with the auto class of the speech recognition pipeline."""
    for name, module, model_name, task in MODELS:
        for config in _loaded("configuration", name):
            for model in _loaded(module, model_name):
                transformers.AutoModel.register(config, model, exist_ok=True)
                if task is not None:
                    getattr(transformers, task).register(config, model, exist_ok=True)


def _loaded(module: str, name: str) -> list[Any]:
    """Return a list with the class `name` of a module of this package. During the module's import, the list is empty."""
    loaded = importlib.import_module(f"{__package__}.{module}")
    return [getattr(loaded, name)] if hasattr(loaded, name) else []
