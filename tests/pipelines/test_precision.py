"""Models in half precision are widened on a CPU where the pipeline loads them for a language model, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from transformers import AutomaticSpeechRecognitionPipeline, AutoModelForCTC, pipeline

from hf_ngpulm import NGramLM, register
from hf_ngpulm.common.bundled import bundled

TASK = "automatic-speech-recognition"
CTC = str(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm():
    return NGramLM.train([[1, 2, 3]] * 3, vocab_size=256, order=2)


def test_with_settings_of_ours(lm):
    for settings in ({"lm": lm}, {"phrases": ["harbour"]}, {"num_beams": 4}, {"lm": lm, "dtype": "auto"}):
        assert pipeline(TASK, model=CTC, **settings).dtype == torch.float32
    register()  # again does no harm
    if hasattr(transformers, "CanaryForConditionalGeneration"):
        assert pipeline(TASK, model=str(bundled("examples/models/canary")), phrases=["harbour"]).dtype == torch.float32
    assert pipeline(TASK, model=str(bundled("examples/models/hat"))).dtype == torch.float32  # there is no stock pipeline of it
    assert pipeline(TASK, model=CTC, lm=lm)(np.zeros(16000, dtype=np.float32)).keys() == {"text"}


@pytest.mark.parametrize("given", [{"dtype": torch.float16}, {"torch_dtype": "float16"}, {"model_kwargs": {"dtype": "half"}}])
def test_a_precision_that_is_given_stays(given, lm):
    assert pipeline(TASK, model=CTC, lm=lm, **given).dtype == torch.float16


def test_a_model_of_the_users_stays(lm):
    stock = pipeline(TASK, model=CTC)
    assert stock.dtype == torch.float16
    model = AutoModelForCTC.from_pretrained(CTC, dtype="auto")
    made = pipeline(TASK, model=model, tokenizer=stock.tokenizer, feature_extractor=stock.feature_extractor, lm=lm)
    assert made.model is model and made.dtype == torch.float16


def test_without_settings_it_is_the_stock_pipeline():
    asr = pipeline(TASK, model=CTC, lm=None)
    assert asr.dtype == torch.float16
    audio = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    stock = AutomaticSpeechRecognitionPipeline(asr.model, asr.feature_extractor, asr.tokenizer)
    assert asr(audio.copy()) == stock(audio.copy())
