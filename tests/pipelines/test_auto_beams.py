"""num_beams="auto" stands for the measured number of each family, wherever a number may be given; and is the default wherever
there is a language model or phrases."""

from __future__ import annotations

import json
from pathlib import Path

import experiments
import numpy as np
import pytest
import soundfile
import torch
from speech_models import whisper_parts
from tiny_transducers import demo_transducer
from transformers import AutoModelForCTC, AutoProcessor, pipeline

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, NGramLogitsProcessor, StreamingRecognizer, TransducerDecoder
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.config.tuned import _told
from hf_ngpulm.decoding.options import KNEES
from hf_ngpulm.pipelines import CTCNGramPipeline, NGramPipeline, Seq2SeqNGramPipeline, TransducerNGramPipeline

TASK = "automatic-speech-recognition"
DEMO = bundled("examples/speech/harbour")
MEASURED = Path(__file__).parents[2] / "benchmarks/results/knee_development_set.json"
CLIP = json.loads((DEMO / "clips.jsonl").read_text().splitlines()[0])["audio"]


@pytest.fixture(scope="module")
def ctc():
    model = AutoModelForCTC.from_pretrained(bundled("examples/models/ctc"), dtype=torch.float32).eval()
    return model, AutoProcessor.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def clip():
    return soundfile.read(DEMO / CLIP, dtype="float32")[0]


def test_they_are_the_measured_knees():
    found = json.loads(MEASURED.read_text())
    of_models = {"ctc": "ctc", "rnnt": "transducer", "tdt": "transducer", "canary": "attention"}
    assert (
        found["knees"]
        == experiments.knees([{**row, "all": row["even"] + row["odd"]} for row in found["rows"]])["knees"]
        == {model: KNEES[family] for model, family in of_models.items()}
    )
    assert set(NGramPipeline.families) == {CTCNGramPipeline, TransducerNGramPipeline, Seq2SeqNGramPipeline}


def test_decoders(ctc):
    assert CTCDecoder(ctc[1], num_beams="auto").options == CTCDecoder(ctc[1], num_beams=4).options
    parts = demo_transducer("ParakeetForTDT")
    for settings in ({}, {"strategy": "alsd"}):
        decoder = TransducerDecoder(parts["model"], parts["tokenizer"], num_beams="auto", **settings)
        assert (decoder.options.num_beams, decoder.options.strategy) == (3, "alsd")


@pytest.fixture(scope="module")
def harbour(ctc):
    return NGramLM.from_arpa(DEMO / "lm.arpa.gz", ctc[1].tokenizer)


def beams_of(decoder):
    return decoder.options.num_beams


def test_the_default_of_decoders(ctc, harbour):
    processor, phrases = ctc[1], ["harbour master"]
    for given, beams in (
        ({}, 1),
        ({"phrases": []}, 1),
        ({"phrases": [None, []]}, 4),
        ({"lm": harbour}, 4),
        ({"lm": [None, harbour]}, 4),
        ({"phrases": phrases}, 4),
        ({"phrases": [None, phrases]}, 4),
        ({"lm": harbour, "num_return_sequences": 6}, 6),
        ({"lm": harbour, "num_beams": 1}, 1),
        ({"lm": harbour, "repeats": "label"}, 1),
    ):
        assert beams_of(CTCDecoder(processor, **given)) == beams, given
    parts = demo_transducer("ParakeetForTDT")
    for given, beams in (({}, 1), ({"lm": harbour}, 3), ({"phrases": phrases}, 3), ({"lm": harbour, "strategy": "greedy"}, 1)):
        decoder = TransducerDecoder(parts["model"], parts["tokenizer"], **given)
        assert (beams_of(decoder), decoder.options.strategy) == (beams, "greedy" if beams == 1 else "alsd")


def test_phrases_of_one_call_have_a_beam(ctc, clip):
    model, processor = ctc
    with torch.inference_mode():
        logits = model(**processor(clip, sampling_rate=16000, return_tensors="pt")).logits
    phrases = ["harbour master", "ferry"]
    plain, beam = CTCDecoder(processor), CTCDecoder(processor, num_beams=4)
    expected = beam(logits, phrases=phrases)
    assert plain(logits, phrases=phrases) == plain.with_phrases(phrases)(logits) == expected
    streamed = plain.stream(1, phrases=phrases)
    streamed.add(logits)
    assert [[h.text for h in row] for row in streamed.hypotheses()] == [[h.text for h in row] for row in expected]
    assert beams_of(plain) == beams_of(plain.with_phrases([])) == 1
    parts = demo_transducer("ParakeetForRNNT")
    plain, beam = (TransducerDecoder(parts["model"], parts["tokenizer"], **given) for given in ({}, {"num_beams": 3}))
    frames = torch.randn(2, 9, parts["model"].config.decoder_hidden_size, generator=torch.Generator().manual_seed(0))
    assert plain.decode(frames, phrases=phrases) == beam.decode(frames, phrases=phrases) != plain.decode(frames)


def test_the_default_of_pipelines_and_streams(ctc, harbour, caplog):
    parts = {"model": ctc[0], "tokenizer": ctc[1].tokenizer, "feature_extractor": ctc[1].feature_extractor}
    for settings, beams in (({"lm": harbour}, 4), ({"phrases": ["ferry"]}, 4), ({"confidence": "max_prob"}, 1)):
        decoder = pipeline(TASK, **parts, **settings)._forward_params["ngram_decoder"]
        assert beams_of(decoder) == beams
    assert pipeline(TASK, **parts)._forward_params.get("ngram_decoder") is None  # the stock pipeline
    assert beams_of(StreamingRecognizer(*ctc, lm=harbour, max_streams=1).decoder.decoder) == 4
    plain = StreamingRecognizer(*ctc, max_streams=1)
    assert beams_of(plain.decoder.decoder) == 1
    _told.clear()
    plain.open(phrases=["ferry"])
    assert "they gain more in a beam" in caplog.text


def test_words_in_greedy_search_are_warned_of(ctc, caplog):
    words = NGramLM.train(["tell the harbour master"] * 3, tokenizer=ctc[1].tokenizer, unit="word", order=2)
    _told.clear()
    caplog.clear()
    CTCDecoder(ctc[1], words)
    assert not caplog.records
    CTCDecoder(ctc[1], words, num_beams=1)
    (warning,) = caplog.records
    assert (
        "greedy search loses most of the gain of a word-level language model" in warning.message
        and "num_beams" in warning.message
    )


def test_language_models_by_name(ctc, harbour, tmp_path):
    """A folder, a Hub id or a file wherever an `lm` is taken."""
    harbour.save_pretrained(tmp_path / "lm")
    folder = str(tmp_path / "lm")
    parts = demo_transducer("ParakeetForRNNT")
    whisper = whisper_parts(tmp_path / "tokenizer.json")
    NGramLM.train(["play the next song"], tokenizer=whisper["tokenizer"], order=2).save_pretrained(tmp_path / "of_whisper")
    for made in (
        CTCDecoder(ctc[1], folder),
        CTCDecoder(ctc[1], str(DEMO / "lm.arpa.gz")),
        CTCDecoder(ctc[1], [None, DEMO / "lm.arpa.gz"]),
        CTCDecoder(ctc[1], harbour, source_lm=folder),
        GraphDecoder(ctc[1], folder),
        TransducerDecoder(parts["model"], parts["tokenizer"], folder),
        StreamingRecognizer(*ctc, lm=folder, max_streams=1).decoder.decoder,
        StreamingRecognizer(*ctc, lm=folder, strategy="graph", max_streams=1).decoder.decoder,
        NGramLogitsProcessor(str(tmp_path / "of_whisper"), model=whisper["model"]),
    ):
        assert all(isinstance(model, NGramLM) for model in made.fusion.models) and made.fusion.models
    with pytest.raises(FileNotFoundError, match="neither a folder nor"):
        CTCDecoder(ctc[1], "no/such/folder")


@pytest.mark.parametrize("given", ["many", "", 0, 2.5, True])
def test_other_values_are_refused(ctc, given):
    with pytest.raises(ValueError, match=r"num_beams should be a whole number from 1 to 1024, or 'auto', got"):
        CTCDecoder(ctc[1], num_beams=given)


def test_searches_without_a_knee_say_so(ctc):
    with pytest.raises(ValueError, match="no measured value for a graph; leave it out for the default of 64"):
        pipeline(TASK, model=ctc[0], tokenizer=ctc[1].tokenizer, feature_extractor=ctc[1].feature_extractor, strategy="graph",
                 num_beams="auto", lm=NGramLM.from_arpa(DEMO / "lm.arpa.gz", ctc[1].tokenizer))  # fmt: skip
    with pytest.raises(ValueError, match="no measured value for a graph"):
        GraphDecoder(ctc[1], NGramLM.from_arpa(DEMO / "lm.arpa.gz", ctc[1].tokenizer), max_active="auto")
    parts = demo_transducer("ParakeetForRNNT")
    with pytest.raises(ValueError, match="without a beam search"):
        TransducerDecoder(parts["model"], parts["tokenizer"], strategy="greedy", num_beams="auto")


def test_pipelines(ctc, clip):
    parts = {"model": ctc[0], "tokenizer": ctc[1].tokenizer, "feature_extractor": ctc[1].feature_extractor}
    lm = NGramLM.from_arpa(DEMO / "lm.arpa.gz", ctc[1].tokenizer)
    for given, beams, lm_of_it in ((parts, 4, lm), (demo_transducer("ParakeetForTDT"), 3, None)):
        asr = pipeline(TASK, **given, lm=lm_of_it, num_beams="auto")
        assert asr._forward_params["ngram_decoder"].options.num_beams == beams
        other = pipeline(TASK, **given, lm=lm_of_it)
        assert asr(clip.copy()) == other(clip.copy(), num_beams="auto") == other(clip.copy(), num_beams=beams)


def test_decoders_with_attention(tmp_path):
    parts = whisper_parts(tmp_path / "tokenizer.json")
    lm = NGramLM.train(["play the next song", "turn the light off"] * 5, tokenizer=parts["tokenizer"], order=3)
    audio = np.random.default_rng(0).standard_normal(16000).astype(np.float32) / 9
    plain = pipeline(TASK, **parts, max_new_tokens=9)
    auto = pipeline(TASK, **parts, max_new_tokens=9, num_beams="auto")
    beams: list[int] = []
    generate = parts["model"].generate

    def noted(*args, **kwargs):
        config = kwargs.get("generation_config")
        beams.append(kwargs.get("num_beams") or config.num_beams)
        return generate(*args, **kwargs)

    parts["model"].generate = noted
    try:
        for settings in ({}, {"lm": lm}):
            found = [
                auto(audio.copy(), **settings),
                plain(audio.copy(), num_beams="auto", **settings),
                plain(audio.copy(), generate_kwargs={"num_beams": "auto"}, **settings),
                plain(audio.copy(), num_beams=2, **settings),
            ]
            assert all(result == found[-1] for result in found)
    finally:
        parts["model"].generate = generate
    assert beams == [2] * 8
    for wrong in ({"num_beams": "many"}, {"generate_kwargs": {"num_beams": "many"}}):
        with pytest.raises(ValueError, match="or 'auto', got 'many'"):
            plain(audio.copy(), **wrong)


def test_streams(ctc):
    recognizer = StreamingRecognizer(*ctc, num_beams="auto", max_streams=1)
    assert recognizer.decoder.decoder.options.num_beams == 4
    again = recognizer.for_recordings(1, 20.0, 2.0, num_beams="auto")
    assert again.decoder.decoder.options.num_beams == 4


def test_what_was_tuned_for_a_beam_holds(ctc):
    lm = NGramLM.from_arpa(DEMO / "lm.arpa.gz", ctc[1].tokenizer)
    lm.remember(tuned(ctc[0], {"lm_weight": 1.25, "beta": 2.0, "num_beams": 8}))
    lm.remember(tuned(ctc[0], {"lm_weight": 0.25}))
    decoder = CTCDecoder(ctc[1], lm, model=ctc[0], num_beams="auto")
    assert (decoder.options.num_beams, decoder.options.beta, decoder.fusion.weight) == (4, 2.0, 1.25)


def tuned(model, settings):
    from hf_ngpulm.config.tuned import ModelIdentity, TunedDecoding

    return TunedDecoding(ModelIdentity.of(model), settings)


def test_command_line(capsys):
    command = ["transcribe", str(DEMO / CLIP), "--model", str(bundled("examples/models/ctc")), "--device", "cpu", "--num-beams"]
    printed = []
    for beams in ("auto", "4"):
        assert run([*command, beams]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""
    for wrong in ("many", "0"):
        assert run([*command, wrong]) == 2
        assert "a whole number above 0, or auto" in capsys.readouterr().err
