"""Cards as the Hub takes them: its metadata, by its own reader, and tables that are tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers
from huggingface_hub import ModelCard

from hf_ngpulm import NGramLM
from hf_ngpulm.common.bundled import bundled

ROOT = Path(__file__).parent.parent.parent
MODELS = sorted(ROOT.glob("examples/models/*/README.md"))


TEXTS = ["the red buoy", "a green buoy"]


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(MODELS[0].parent)


def check(text):
    """Read a card; every row of its tables becomes one."""
    markdown = pytest.importorskip("markdown")
    card = ModelCard(text)
    assert card.data.pipeline_tag in transformers.pipelines.SUPPORTED_TASKS
    assert card.data.library_name in ("hf_ngpulm", "transformers") and "$" not in text
    rows = [line for line in card.text.splitlines() if line.startswith("|") and not re.fullmatch(r"[|-]+", line)]
    assert rows and markdown.markdown(card.text, extensions=["tables", "fenced_code"]).count("<tr>") == len(rows)
    return card


def test_a_language_models_card(tokenizer):
    lm = NGramLM.train(TEXTS, tokenizer, order=3)
    bare = check(lm.model_card("alice/ships")).data.to_dict()
    assert set(bare) == {"library_name", "pipeline_tag", "tags"}  # what isn't known isn't said
    full = lm.model_card("alice/ships", "org/asr", datasets=["org/texts"], language=["en", "de"], license="cc-by-4.0")
    data = check(full).data
    assert (data.datasets, data.language, data.license) == (["org/texts"], ["en", "de"], "cc-by-4.0")
    assert all(example["src"].startswith("https://") for example in data.widget)
    assert check(lm.model_card("alice/ships", language=["pl"])).data.get("widget") is None
    tuned = NGramLM.from_pretrained(bundled("examples/speech/harbour/lm")).model_card("alice/ships")
    assert check(tuned).data.metrics == ["wer"]
    measured = NGramLM.train(TEXTS, tokenizer, order=2, valid=TEXTS)
    assert check(measured.model_card()).data.metrics == ["perplexity"]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.parent.name)
def test_a_bundled_models_card(path):
    text = path.read_text(encoding="utf-8")
    data = check(text).data
    assert data.license == "apache-2.0" and data.metrics == ["wer"]
    greedy = next(found for found in data.eval_results if found.metric_name == "WER, greedy")
    assert f"| harbour | greedy | {greedy.metric_value} |" in text
