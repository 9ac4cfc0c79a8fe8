"""The language model of a pipeline that is saved: beside the recogniser, whose config names it."""

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
# Of a generation config that says it is made of the model's Transformers would read no names that it doesn't know.
REPLACED = ("ngram_lm", "ngram_lm_weight", "_from_model_config")
logger = logging.getLogger(__name__)


def save_settings(settings: Mapping[str, Any], folder: Path) -> None:
    """Save a language model and its weight in the folder of a recogniser that has been saved; warn of what can't be.

    The generation config names them, or of models that don't generate the config: pipelines, and strategies of `generate`, read
    it there.

    Args:
        settings: of the pipeline, by name.
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
        logger.warning("%s: not saved with the pipeline; give them to pipeline(...) again", ", ".join(left))
    file = next(path for name in ("generation_config.json", "config.json") if (path := folder / name).is_file())
    config = json.loads(file.read_text(encoding="utf-8"))
    # What it named before was another model, or lies beside where the recogniser came from.
    if saved or str(config.get("ngram_lm", "")).startswith(BESIDE):
        named = {f"ngram_{name}": value for name, value in saved.items()}
        config = {name: value for name, value in config.items() if name not in REPLACED} | named
        with write_beside(file) as new:
            new.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
