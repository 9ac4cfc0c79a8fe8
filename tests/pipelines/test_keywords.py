"""Names of settings: those that mean nothing are refused by the nearest name; a generation config's name of an LM is taken."""

from __future__ import annotations

import numpy as np
import pytest
from speech_models import whisper_parts
from tiny_transducers import demo_transducer
from transformers import pipeline

from hf_ngpulm import NGramLM
from hf_ngpulm.common.bundled import bundled

TASK = "automatic-speech-recognition"
NOISE = np.random.default_rng(0).standard_normal(8000).astype(np.float32) / 9


@pytest.fixture(scope="module")
def asrs(tmp_path_factory):
    """A pipeline of each family."""
    whisper = whisper_parts(tmp_path_factory.mktemp("whisper") / "tokenizer.json")
    return {
        "ctc": pipeline(TASK, model=str(bundled("examples/models/ctc"))),
        "transducer": pipeline(TASK, **demo_transducer("ParakeetForRNNT")),
        "attention": pipeline(TASK, **whisper, max_new_tokens=9),
    }


def parts(asr):
    return {"model": asr.model, "tokenizer": asr.tokenizer, "feature_extractor": asr.feature_extractor}


@pytest.mark.parametrize("family", ["ctc", "transducer", "attention"])
@pytest.mark.parametrize(
    "name, meant",
    [
        ("language_model", "lm"),
        ("lm_path", "lm"),
        ("beam_size", "num_beams"),
        ("hotwords", "phrases"),
        ("phrase_weigth", "phrase_weight"),
        ("alpha", "lm_weight"),
        ("n_best", "num_return_sequences"),
        ("chunk_length", "chunk_length_s"),
    ],
)
def test_what_means_nothing_is_refused(asrs, family, name, meant):
    asr = asrs[family]
    with pytest.raises(ValueError, match=f"{name}: there is no such setting; did you mean {meant}"):
        pipeline(TASK, **parts(asr), **{name: 3})
    with pytest.raises(ValueError, match=f"{name}: there is no such setting; did you mean {meant}"):
        asr(NOISE.copy(), **{name: 3})


def test_names_like_none_are_told_what_there_is(asrs):
    with pytest.raises(ValueError, match="qqq: there is no such setting; there are lm, lm_weight, phrases"):
        asrs["ctc"](NOISE.copy(), qqq=1)


@pytest.mark.parametrize("family", ["ctc", "transducer", "attention"])
def test_what_generate_knows_stays(asrs, family):
    """Also where the stock pipeline does nothing with it: programs pass it to models of any family."""
    expected = asrs[family](NOISE.copy())
    assert asrs[family](NOISE.copy(), use_cache=True) == expected
    if family == "attention":  # of Whisper's own `generate`
        assert asrs[family](NOISE.copy(), condition_on_prev_tokens=False)["text"] == expected["text"]


def test_the_generation_configs_name_of_an_lm(asrs):
    of = parts(asrs["ctc"])
    lm = NGramLM.train(["tell the harbour master"] * 3, tokenizer=of["tokenizer"], order=3)
    audio = NOISE.copy()
    expected = pipeline(TASK, **of, lm=lm, lm_weight=2.0)
    named = pipeline(TASK, **of, ngram_lm=lm, ngram_lm_weight=2.0)
    assert named._ngram_settings == expected._ngram_settings
    assert asrs["ctc"](audio.copy(), ngram_lm=lm, ngram_lm_weight=2.0) == expected(audio.copy())
    with pytest.raises(ValueError, match="ngram_lm and lm are the same setting"):
        pipeline(TASK, **of, lm=lm, ngram_lm=lm)
