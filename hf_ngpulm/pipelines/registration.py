"""Make `pipeline("automatic-speech-recognition", ...)` use this package's classes."""

from __future__ import annotations

from transformers import AutoModelForRNNT
from transformers.pipelines import PIPELINE_REGISTRY

from ..models import registration as models
from .base import NGramPipeline
from .precision import noting_precision

TASK = "automatic-speech-recognition"


def register() -> None:
    """Replace the stock pipeline class by this package's subclass. Also register this package's models."""
    models.register()
    stock = PIPELINE_REGISTRY.supported_tasks[TASK]
    # The stock task has no auto class for RNN-T.
    classes = tuple(dict.fromkeys(getattr(kind, "noted", kind) for kind in (*stock["pt"], AutoModelForRNNT)))
    # `register_pipeline` would do the same, but warns that the task already exists.
    PIPELINE_REGISTRY.supported_tasks[TASK] = {**stock, "pt": tuple(map(noting_precision, classes)), "impl": NGramPipeline}
