"""Makes the auto classes of Transformers know the models of this package."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoTokenizer, ParakeetFeatureExtractor

from .configuration import HatConfig, StatelessTransducerConfig
from .transducers import HatForASR, StatelessTransducerForASR

MODELS: tuple[tuple[Any, Any], ...] = (
    (HatConfig, HatForASR),
    (StatelessTransducerConfig, StatelessTransducerForASR),
)
# The auto class by which the speech recognition pipeline finds them.
AUTO: Any = getattr(transformers, "AutoModelForRNNT", transformers.AutoModelForCTC)


def register() -> None:
    """Enter the classes; again does no harm."""
    for config, model in MODELS:
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, model, exist_ok=True)
        AUTO.register(config, model, exist_ok=True)
        AutoFeatureExtractor.register(config, ParakeetFeatureExtractor, exist_ok=True)
        AutoTokenizer.register(config, fast_tokenizer_class=transformers.PreTrainedTokenizerFast, exist_ok=True)
