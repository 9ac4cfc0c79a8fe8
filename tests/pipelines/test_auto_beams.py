"""num_beams="auto" stands for the measured number of each family, wherever a number may be given."""

from __future__ import annotations

import json
from pathlib import Path

import knee
import numpy as np
import pytest
import soundfile
import torch
from speech_models import whisper_parts
from tiny_transducers import demo_transducer
from transformers import AutoModelForCTC, AutoProcessor, pipeline

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, StreamingRecognizer, TransducerDecoder
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
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
    assert found["knees"] == knee.knees(found["rows"]) == {model: KNEES[family] for model, family in of_models.items()}
    assert set(NGramPipeline.families) == {CTCNGramPipeline, TransducerNGramPipeline, Seq2SeqNGramPipeline}


def test_decoders(ctc):
    assert CTCDecoder(ctc[1], num_beams="auto").options == CTCDecoder(ctc[1], num_beams=4).options
    parts = demo_transducer("ParakeetForTDT")
    for settings in ({}, {"strategy": "alsd"}):
        decoder = TransducerDecoder(parts["model"], parts["tokenizer"], num_beams="auto", **settings)
        assert (decoder.options.num_beams, decoder.options.strategy) == (3, "alsd")


@pytest.mark.parametrize("given", ["many", "", 0, 2.5, True])
def test_other_values_are_refused(ctc, given):
    with pytest.raises(ValueError, match=r"num_beams should be a whole number from 1 to 1024, or 'auto', got"):
        CTCDecoder(ctc[1], num_beams=given)


def test_searches_without_a_knee_say_so(ctc):
    with pytest.raises(ValueError, match="no meaning in a graph, for which it wasn't measured; leave it out, which is 64"):
        pipeline(TASK, model=ctc[0], tokenizer=ctc[1].tokenizer, feature_extractor=ctc[1].feature_extractor, strategy="graph",
                 num_beams="auto", lm=NGramLM.from_arpa(DEMO / "lm.arpa.gz", ctc[1].tokenizer))  # fmt: skip
    with pytest.raises(ValueError, match="no meaning in a graph"):
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
        greedy = pipeline(TASK, **given, lm=lm_of_it)
        assert asr(clip.copy()) == greedy(clip.copy(), num_beams="auto") == greedy(clip.copy(), num_beams=beams)


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
