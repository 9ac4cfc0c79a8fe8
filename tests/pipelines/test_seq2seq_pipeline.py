"""Seq2SeqNGramPipeline: without a language model the stock pipeline; with one, its `generate` with the processor."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from speech_models import whisper_parts
from transformers import AutomaticSpeechRecognitionPipeline, GenerationMixin, pipeline

from hf_ngpulm import NGramLM, NGramLogitsProcessor, Seq2SeqNGramPipeline, TokenizerMismatchError
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.pipelines import seq2seq

TASK = "automatic-speech-recognition"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return whisper_parts(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module")
def tokenizer(parts):
    return parts["tokenizer"]


@pytest.fixture(scope="module")
def lm(tokenizer):
    texts = ["play the next song", "turn the light off", "what's the weather", "jazz quickly vexed him big fop"] * 5
    return NGramLM.train(texts, tokenizer=tokenizer, order=3)


@pytest.fixture(scope="module")
def audios():
    generator = np.random.default_rng(0)
    return [generator.standard_normal(length).astype(np.float32) / 9 for length in (16000, 9000)]


def generated(parts, audio, lm, weight, max_new_tokens=9, **settings):
    inputs = parts["feature_extractor"](audio, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    processor = NGramLogitsProcessor(lm, weight, model=parts["model"])
    with torch.no_grad():
        tokens = parts["model"].generate(**inputs, logits_processor=[processor], max_new_tokens=max_new_tokens, **settings)
    return parts["tokenizer"].decode(tokens[0], skip_special_tokens=True)


def test_without_lm_it_is_the_stock_pipeline(parts, audios):
    stock, ours = AutomaticSpeechRecognitionPipeline(**parts, max_new_tokens=9), pipeline(TASK, **parts, max_new_tokens=9)
    assert type(ours) is Seq2SeqNGramPipeline
    for settings in ({}, {"return_timestamps": True}, {"num_beams": 2}):
        copies = [audio.copy() for audio in audios]
        assert ours(copies, **settings) == stock([audio.copy() for audio in audios], **settings)


def test_the_strategy_takes_the_place_of_stock_beam_search_where_it_can(parts, audios, lm, monkeypatch):
    asr, expected = pipeline(TASK, **parts, max_new_tokens=9), generated(parts, audios[0], lm, 2.0, num_beams=3)

    def refuse(*args, **kwargs):
        raise AssertionError("stock beam search")

    monkeypatch.setattr(GenerationMixin, "_beam_search", refuse)
    assert asr(audios[0].copy(), lm=lm, lm_weight=2.0, num_beams=3, length_penalty=1.0)["text"] == expected
    monkeypatch.undo()
    assert asr.may_step({}) and asr.may_step({"num_beams": 1})
    for others in ({"prompt_lookup_num_tokens": 2}, {"assistant_model": parts["model"]}, {"custom_generate": print}):
        assert not asr.may_step({"num_beams": 1, **others})


@pytest.mark.parametrize("num_beams", [1, 3])
def test_lm_and_weight_of_the_pipeline_and_of_a_call(num_beams, parts, lm, audios):
    asr = pipeline(TASK, **parts, max_new_tokens=9, lm=lm, lm_weight=0.9, num_beams=num_beams)
    plain = AutomaticSpeechRecognitionPipeline(**parts, max_new_tokens=9)
    audio, ranked = audios[0], {"num_beams": num_beams, **({"length_penalty": 0.0} if num_beams > 1 else {})}
    assert asr(audio.copy())["text"] == generated(parts, audio, lm, 0.9, **ranked)
    assert asr(audio.copy(), lm_weight=3.0)["text"] == generated(parts, audio, lm, 3.0, **ranked)
    assert asr(audio.copy(), lm=None)["text"] == plain(audio.copy(), num_beams=num_beams)["text"]
    assert asr(audio.copy())["text"] == generated(parts, audio, lm, 0.9, **ranked)  # calls change nothing
    assert pipeline(TASK, **parts, max_new_tokens=9)(audio.copy(), lm=lm, num_beams=num_beams)["text"] == generated(
        parts, audio, lm, 0.2, num_beams=num_beams
    )


# A model with random weights hardly ever ends by itself.
ENDING = {"num_beams": 3, "max_new_tokens": 30, "sequence_bias": [[[28], 1.0]]}


def test_lengths_do_not_count_where_an_lm_does(parts, lm, audios):
    """Unless somebody says so, or there is one beam only."""
    asr, audio = pipeline(TASK, **parts, lm=lm, lm_weight=0.6, **ENDING), audios[0]

    def ranked(penalty):
        return generated(parts, audio, lm, 0.6, length_penalty=penalty, **ENDING)

    def heard(**given):
        return asr(audio.copy(), **given)["text"]

    assert ranked(0.0) != ranked(1.0)
    assert heard() == ranked(0.0)
    assert heard(length_penalty=1.0) == heard(generate_kwargs={"length_penalty": 1.0}) == ranked(1.0)
    told = pipeline(TASK, **parts, lm=lm, lm_weight=0.6, length_penalty=1.0, **ENDING)
    assert told(audio.copy())["text"] == ranked(1.0)
    chosen = copy.deepcopy(parts["model"].generation_config)
    for name, value in {**ENDING, "length_penalty": 1.5}.items():
        setattr(chosen, name, value)
    assert heard(generation_config=chosen) == ranked(1.5)
    alone = pipeline(TASK, **parts, **ENDING)
    for without in ({"lm": None}, {"lm_weight": 0.0}):
        assert heard(**without) == alone(audio.copy())["text"]


def test_lengths_count_in_long_recordings(parts, lm, audios, monkeypatch):
    monkeypatch.setattr(seq2seq, "SHORT", 0.8)
    asr = pipeline(TASK, **parts, lm=lm, lm_weight=0.6, **ENDING)
    long = generated(parts, audios[0], lm, 0.6, length_penalty=1.0, **ENDING)
    short = generated(parts, audios[1], lm, 0.6, length_penalty=0.0, **ENDING)
    assert long != generated(parts, audios[0], lm, 0.6, length_penalty=0.0, **ENDING)
    assert short != generated(parts, audios[1], lm, 0.6, length_penalty=1.0, **ENDING)
    for batch_size in (1, 2):
        found = asr([audio.copy() for audio in audios], batch_size=batch_size)
        assert [each["text"] for each in found] == [long, short]


@pytest.mark.parametrize("timestamps", [None, True, "word"])
def test_some_recordings_with_an_lm(timestamps, parts, lm, audios):
    """What a recording's neighbours in a batch have doesn't matter."""
    more = {} if timestamps is None else {"return_timestamps": timestamps}
    asr = pipeline(TASK, **parts, **ENDING, **more)
    recordings, lms = [audios[1], audios[0], audios[1], audios[0]], [None, lm, lm, None]
    expected = [asr(audio.copy(), lm=each) for audio, each in zip(recordings, lms)]
    assert expected[0] != expected[2]
    for batch_size in (2, 3, 4):
        found = asr([audio.copy() for audio in recordings], lm=lms, batch_size=batch_size)
        # Transformers' own times of words differ a little between batches.
        assert found == expected or (timestamps == "word" and [e["text"] for e in found] == [e["text"] for e in expected])


def test_an_lm_from_files(parts, lm, audios, tmp_path):
    lm.save_pretrained(tmp_path / "lm")
    lm.to_arpa(tmp_path / "lm.arpa")
    expected = pipeline(TASK, **parts, max_new_tokens=9, lm=lm, lm_weight=0.9)(audios[0].copy())
    for source in (tmp_path / "lm", str(tmp_path / "lm.arpa")):
        assert pipeline(TASK, **parts, max_new_tokens=9, lm=source, lm_weight=0.9)(audios[0].copy()) == expected


@pytest.mark.parametrize("settings", [{"num_beams": 3}, {"num_beams": 1, "return_timestamps": True}])
def test_what_is_subtracted(settings, parts, lm, audios, tmp_path):
    source = NGramLM.train(["the next light is off", "fog"] * 5, tokenizer=parts["tokenizer"], order=2)
    source.save_pretrained(tmp_path / "source")
    asr = pipeline(TASK, **parts, max_new_tokens=9, lm=lm, lm_weight=0.9, **settings)
    plain, told = asr(audios[0].copy()), {"ilm_weight": 0.6, "source_lm": source, "source_weight": 0.4}
    found = asr(audios[0].copy(), **told)
    assert found != plain
    assert asr(audios[0].copy(), **{**told, "source_lm": str(tmp_path / "source")}) == found
    if "return_timestamps" not in settings:
        model, inputs = parts["model"], parts["feature_extractor"](audios[0], sampling_rate=16000, return_tensors="pt")
        own = {"lm": lm, "lm_weight": 0.9, "max_new_tokens": 9, **told, **settings}
        tokens = model.generate(**inputs, custom_generate=seq2seq_generate, **own)
        assert parts["tokenizer"].decode(tokens[0], skip_special_tokens=True) == found["text"]
    # Each recording may have weights of its own; what isn't given, in so many words, is as if it had never been.
    each = asr([audios[0].copy() for _ in range(2)], **{**told, "ilm_weight": [0.0, 0.6], "source_weight": [0.0, 0.4]})
    assert each == [plain, found]
    standing = pipeline(TASK, **parts, max_new_tokens=9, lm=lm, lm_weight=0.9, **settings, **told)
    assert standing(audios[0].copy(), source_lm=None) == asr(audios[0].copy(), ilm_weight=0.6)
    alone = pipeline(TASK, **parts, max_new_tokens=9, **settings)(audios[0].copy())
    assert standing(audios[0].copy(), **dict.fromkeys(["lm", *told])) == standing(audios[0].copy(), lm=None) == alone
    with pytest.raises(ValueError, match=r"source_weight=0\.2 is given without source_lm="):
        standing(audios[0].copy(), source_lm=None, source_weight=0.2)
    with pytest.raises(ValueError, match="ilm_weight lists 2 values"):
        asr([audios[0].copy()], ilm_weight=[0.1, 0.2])
    with pytest.raises(ValueError, match="ilm_weight, source_lm given without lm="):
        asr(audios[0].copy(), lm=None, ilm_weight=0.6, source_lm=source)


def test_batches(parts, lm, audios):
    asr = pipeline(TASK, **parts, max_new_tokens=9, lm=lm, lm_weight=0.9)
    copies = [[audio.copy() for audio in audios] for _ in range(2)]
    assert asr(copies[0], batch_size=2) == asr(copies[1], batch_size=1)


@pytest.mark.parametrize("timestamps", [True, "word"])
@pytest.mark.parametrize("settings", [{}, {"chunk_length_s": 0.8}, {"seconds": 2.3}])
def test_timestamps_and_long_audio(settings, timestamps, parts, lm, audios):
    settings = dict(settings)
    seconds = settings.pop("seconds", 1.6 if settings else 0.9)
    audio = np.tile(audios[0], 3)[: int(16000 * seconds)]
    asr = pipeline(TASK, **parts, max_new_tokens=9, lm=lm, lm_weight=0.9, ignore_warning=True)
    result = asr(audio.copy(), return_timestamps=timestamps, num_beams=1, **settings)
    plain = asr(audio.copy(), return_timestamps=timestamps, num_beams=1, lm=None, **settings)
    assert result["chunks"] and all(chunk.keys() == {"text", "timestamp"} for chunk in result["chunks"])
    assert result != plain


def test_other_processors_stay(parts, lm, audios):
    def never_an_a(input_ids, scores):
        scores[:, 1] = -torch.inf
        return scores

    asr = pipeline(TASK, **parts, max_new_tokens=9, lm=lm, lm_weight=3.0)
    assert "a" not in asr(audios[0].copy(), generate_kwargs={"logits_processor": [never_an_a]})["text"]


def test_refusals(parts, lm, audios):
    with pytest.raises(ValueError, match="lm_weigth: there is no such setting; did you mean lm_weight"):
        pipeline(TASK, **parts, max_new_tokens=9, lm_weigth=0.1)
    with pytest.raises(ValueError, match="lm_weight given without lm="):
        pipeline(TASK, **parts, max_new_tokens=9, lm_weight=0.5)
    with pytest.raises(ValueError, match="beam_threshold: no settings for WhisperForConditionalGeneration"):
        pipeline(TASK, **parts, max_new_tokens=9, lm=lm, beam_threshold=3.0)
    with pytest.raises(ValueError, match="unscored should be one of"):
        pipeline(TASK, **parts, max_new_tokens=9, lm=lm)(audios[0].copy(), unscored="some")
    other = NGramLM.train([[1, 2, 3]] * 3, vocab_size=28, order=2)
    other.config = replace(other.config, tokenizer_fingerprint="0" * 64)
    with pytest.raises(TokenizerMismatchError, match="made for another tokenizer"):
        pipeline(TASK, **parts, max_new_tokens=9, lm=other)


def test_the_generation_config_may_name_an_lm(parts, lm, audios, tmp_path, monkeypatch):
    lm.save_pretrained(tmp_path)
    expected = pipeline(TASK, **parts, max_new_tokens=9, lm=lm, lm_weight=3.0)(audios[0].copy())
    plain = pipeline(TASK, **parts, max_new_tokens=9)(audios[0].copy())
    monkeypatch.setattr(parts["model"].generation_config, "ngram_lm", str(tmp_path), raising=False)
    monkeypatch.setattr(parts["model"].generation_config, "ngram_lm_weight", 3.0, raising=False)
    asr = pipeline(TASK, **parts, max_new_tokens=9)
    assert asr(audios[0].copy()) == expected != plain
    assert asr(audios[0].copy(), lm=None) == pipeline(TASK, **parts, max_new_tokens=9, lm=None)(audios[0].copy()) == plain
