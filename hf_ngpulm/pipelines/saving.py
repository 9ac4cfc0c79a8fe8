"""Save a pipeline's language model in the recogniser's folder, and name the language model in the recogniser's config."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.files import write_beside
from ..language_model.loading import BESIDE
from ..language_model.model import NGramLM

FOLDER = "ngram_lm"
# Transformers drops unknown names from a generation config that is marked as derived from the model config.
REPLACED = ("ngram_lm", "ngram_lm_weight", "_from_model_config")
logger = logging.getLogger(__name__)


def save_settings(settings: Mapping[str, Any], folder: Path) -> None:
    """Save a language model and its weight in the folder of a saved recogniser; warn about settings that can't be saved.

    The model's name and the weight are written to the generation config, or to the config of a model that doesn't generate.
    Pipelines and strategies of `generate` read both from this config.

    Args:
        settings: the pipeline's settings, by name.
        folder: the folder of the saved recogniser.
    """
    lm, weight = settings.get("lm"), settings.get("lm_weight")
    saved: dict[str, Any] = {}
    if isinstance(lm, NGramLM):
        lm.save_pretrained(folder / FOLDER)
        saved["lm"] = BESIDE + FOLDER
        if isinstance(weight, int | float):
            saved["lm_weight"] = float(weight)
    left = sorted(name for name in settings.keys() - saved.keys() if settings[name] is not None)
    if left:
        logger.warning("%s: not saved with the pipeline; pass them to pipeline(...) again", ", ".join(left))
    file = next(path for name in ("generation_config.json", "config.json") if (path := folder / name).is_file())
    config = json.loads(file.read_text(encoding="utf-8"))
    # An earlier entry may name another model, or a folder beside the original recogniser.
    if saved or str(config.get("ngram_lm", "")).startswith(BESIDE):
        named = {f"ngram_{name}": value for name, value in saved.items()}
        config = {name: value for name, value in config.items() if name not in REPLACED} | named
        with write_beside(file) as new:
            new.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
