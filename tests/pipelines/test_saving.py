"""A pipeline that is saved keeps its language model; what can't be kept is told of."""

from __future__ import annotations

import json
import logging

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCTC,
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    pipeline,
)

from hf_ngpulm import LogLinear, NGramFormatError, NGramLM
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.language_model import hub
from hf_ngpulm.language_model.loading import located
from hf_ngpulm.sound.files import read_audio

TASK = "automatic-speech-recognition"
DEMO = bundled("examples/speech/harbour")
NEWER = {"rnnt": "ParakeetForRNNT", "canary": "CanaryForConditionalGeneration"}


@pytest.fixture(scope="module")
def audio():
    return read_audio(sorted((DEMO / "clips").iterdir())[0], 16000)


@pytest.fixture(scope="module")
def lm():
    return NGramLM.from_arpa(DEMO / "lm.arpa.gz", AutoProcessor.from_pretrained(bundled("examples/models/ctc")).tokenizer)


def made(name, **settings):
    if name in NEWER and not hasattr(transformers, NEWER[name]):
        pytest.skip(f"Transformers without {NEWER[name]}")
    return pipeline(TASK, model=str(bundled(f"examples/models/{name}")), **settings)


def named(folder):
    files = [folder / name for name in ("generation_config.json", "config.json")]  # models that don't generate have no former
    config = json.loads(next(file for file in files if file.exists()).read_text())
    return {key: value for key, value in config.items() if key.startswith("ngram_lm")}


@pytest.mark.parametrize("name", ["ctc", "rnnt", "canary", "hat"])
def test_it_comes_back(name, lm, audio, tmp_path, caplog):
    asr = made(name, lm=lm, lm_weight=0.9)
    asr.save_pretrained(tmp_path / "saved")
    saved = (tmp_path / "saved").rename(tmp_path / "elsewhere")
    assert "not saved" not in caplog.text
    again = pipeline(TASK, model=str(saved))
    found = again(audio.copy())
    assert found == asr(audio.copy()) == again(audio.copy(), lm=lm) != made(name)(audio.copy())
    assert named(saved) == {"ngram_lm": "./ngram_lm", "ngram_lm_weight": 0.9}

    # Saved anew with another one, or with none.
    unweighted = pipeline(TASK, model=str(saved), lm=lm)
    unweighted.save_pretrained(saved)
    assert named(saved) == {"ngram_lm": "./ngram_lm"}
    pipeline(TASK, model=str(saved), lm=None).save_pretrained(tmp_path / "without")
    assert named(tmp_path / "without") == {}
    assert pipeline(TASK, model=str(tmp_path / "without"))._ngram_settings is None or name == "hat"


def test_models_that_do_not_generate(lm, tmp_path):
    """Their config names it."""
    tokenizer = AutoProcessor.from_pretrained(bundled("examples/models/ctc")).tokenizer
    config = Wav2Vec2Config(
        vocab_size=257, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(16,) * 7,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, feat_extract_norm="layer", pad_token_id=256,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config)
    asr = pipeline(TASK, model=model, tokenizer=tokenizer, feature_extractor=Wav2Vec2FeatureExtractor(), lm=lm, lm_weight=2)
    asr.save_pretrained(tmp_path)
    again = pipeline(TASK, model=str(tmp_path))
    assert again._ngram_settings["lm_weight"] == 2.0 and again._ngram_settings["lm"].num_ngrams == lm.num_ngrams


def test_generate_finds_it_too(lm, audio, tmp_path):
    made("canary", lm=lm, lm_weight=0.9, dtype=torch.float32).save_pretrained(tmp_path)
    processor = AutoProcessor.from_pretrained(bundled("examples/models/canary"))
    model = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path, dtype=torch.float32)
    inputs = processor.feature_extractor(audio, sampling_rate=16000, return_tensors="pt")
    found = model.generate(**inputs, custom_generate=seq2seq_generate, max_new_tokens=40)
    given = model.generate(**inputs, custom_generate=seq2seq_generate, max_new_tokens=40, lm=lm, lm_weight=0.9)
    plain = model.generate(**inputs, custom_generate=seq2seq_generate, max_new_tokens=40, lm=False)
    assert found.tolist() == given.tolist() != plain.tolist()


def test_what_is_not_saved_is_named(lm, tmp_path, caplog):
    asr = made("ctc", lm=[lm, None], lm_weight=0.3, phrases=["harbour"], num_beams=4)
    with caplog.at_level(logging.WARNING):
        asr.save_pretrained(tmp_path)
    assert "lm, lm_weight, num_beams, phrases: not saved with the pipeline; pass them to pipeline(...) again" in caplog.text
    assert named(tmp_path) == {} and not (tmp_path / "ngram_lm").exists()
    caplog.clear()
    made("ctc", lm=LogLinear([lm, lm], [0.5, 0.5])).save_pretrained(tmp_path)
    assert "lm: not saved" in caplog.text
    caplog.clear()
    made("ctc").save_pretrained(tmp_path)
    assert not caplog.text or "not saved" not in caplog.text


def test_a_name_of_another_repo_stays(lm, tmp_path):
    model = AutoModelForCTC.from_pretrained(bundled("examples/models/ctc"))
    (model.generation_config or model.config).ngram_lm = "org/my-lm"
    if model.generation_config is not None:  # as in a repo that has one of its own
        model.generation_config._from_model_config = False
    processor = AutoProcessor.from_pretrained(bundled("examples/models/ctc"))
    parts = {"tokenizer": processor.tokenizer, "feature_extractor": processor.feature_extractor}
    pipeline(TASK, model=model, **parts, lm=None).save_pretrained(tmp_path)
    assert named(tmp_path) == {"ngram_lm": "org/my-lm"}


@pytest.mark.parametrize("name", ["./../lm", "./a/b", "./", "./..", "./.hidden", "./a\\b", "./a\n"])
def test_names_that_lead_elsewhere(name):
    with pytest.raises(ValueError, match="should name a folder beside the model"):
        located(name, AutoModelForCTC.from_pretrained(bundled("examples/models/ctc")))


def test_where_it_lies(lm, tmp_path, monkeypatch):
    model = AutoModelForCTC.from_pretrained(bundled("examples/models/ctc"))
    assert located("org/my-lm", model) == "org/my-lm"
    with pytest.raises(NGramFormatError, match=r"models/ctc/ngram_lm isn't a saved n-gram language model"):
        located("./ngram_lm", model)
    asked = []

    def download(repo, file, **given):
        asked.append((repo, file, given["subfolder"], given["revision"]))
        return str(tmp_path / given["subfolder"] / file)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    model.name_or_path, model.config._commit_hash = "org/recogniser", "0123abc"
    assert located("./ngram_lm", model) == str(tmp_path / "ngram_lm")
    assert asked == [("org/recogniser", f, "ngram_lm", "0123abc") for f in ("config.json", "model.safetensors")]


def test_pushing_all_of_it(lm, tmp_path):
    with pytest.raises(ValueError, match=r"wouldn't upload the language model: call push_to_hub\(repo_id\)"):
        made("ctc", lm=lm).save_pretrained(tmp_path, push_to_hub=True)
