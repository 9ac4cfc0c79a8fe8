"""The CTC pipeline with strategy="graph": GraphDecoder on the model's own logits, with settings for each recording."""

from __future__ import annotations

import json

import pytest
import soundfile
import torch
from transformers import AutoModelForCTC, AutoProcessor, pipeline

from hf_ngpulm import GraphDecoder, NGramLM, PhraseBooster
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.families import frame_lengths

DEMO = bundled("examples/speech/harbour")
TASK = "automatic-speech-recognition"
SETTINGS = {"strategy": "graph", "num_beams": 12, "lm_weight": 0.9}
PHRASES = [["jazz", "the lights"], None, [("harbour", 4.0), "anchor"], [], ["starboard", "turn"]]


@pytest.fixture(scope="module")
def parts():
    model = AutoModelForCTC.from_pretrained(bundled("examples/models/ctc"), dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(bundled("examples/models/ctc"))
    return {"model": model, "tokenizer": processor.tokenizer, "feature_extractor": processor.feature_extractor}


@pytest.fixture(scope="module")
def lm(parts):
    return NGramLM.from_arpa(DEMO / "lm.arpa.gz", parts["tokenizer"])


@pytest.fixture(scope="module")
def asr(parts, lm):
    return pipeline(TASK, **parts, lm=lm, **SETTINGS)


@pytest.fixture(scope="module")
def audios():
    lines = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()][:5]
    return [soundfile.read(DEMO / line["audio"], dtype="float32")[0] for line in lines]


def copies(audios):
    return [audio.copy() for audio in audios]


def logits_of(parts, audio):
    features = parts["feature_extractor"](audio, sampling_rate=16000, return_tensors="pt")
    with torch.inference_mode():
        logits = parts["model"](**features).logits
    frames = int(frame_lengths(parts["model"], features["attention_mask"].sum(-1))[0])
    return logits[:, :frames]


def decode(parts, lm, audio, phrases=None, **settings):
    decoder = GraphDecoder(parts["tokenizer"], lm, 0.9, **{"max_active": 12, "confidence": None, **settings})
    return decoder(logits_of(parts, audio), None, phrases)[0]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_it_is_the_graph_decoder(asr, parts, lm, audios, batch_size):
    found = asr(copies(audios), batch_size=batch_size)
    assert [result["text"] for result in found] == [decode(parts, lm, audio)[0].text for audio in audios]
    graph, prefixes = (asr(audios[0].copy(), num_return_sequences=2, strategy=strategy) for strategy in ("graph", None))
    assert graph["hypotheses"][0]["score"] < prefixes["hypotheses"][0]["score"]  # of one alignment, and of all
    assert asr(audios[0].copy(), num_beams=2)["text"] == decode(parts, lm, audios[0], max_active=2)[0].text


def test_n_best_times_and_confidences(asr, parts, lm, audios):
    settings = {"num_return_sequences": 4, "confidence": "max_prob"}
    found = asr(copies(audios), **settings, return_timestamps="word")
    for audio, result in zip(audios, found):
        n_best = decode(parts, lm, audio, **settings, frame_seconds=0.08)
        assert [hypothesis["text"] for hypothesis in result["hypotheses"]] == [hypothesis.text for hypothesis in n_best]
        assert [h["score"] for h in result["hypotheses"]] == pytest.approx([h.score for h in n_best], abs=1e-2)
        for shown, hypothesis in zip(result["hypotheses"], n_best):
            assert [chunk["timestamp"] for chunk in shown["chunks"]] == [(word.start, word.end) for word in hypothesis.words]
        confidences = [chunk["confidence"] for chunk in result["chunks"]]
        assert confidences == pytest.approx([word.confidence for word in n_best[0].words], abs=1e-3)


def test_phrases_of_each_recording(asr, parts, lm, audios):
    expected = [decode(parts, lm, audio, phrases, discount=20.0)[0].text for audio, phrases in zip(audios, PHRASES)]
    found = asr(copies(audios), phrases=PHRASES, phrase_weight=20.0, batch_size=2)
    assert [result["text"] for result in found] == expected
    plain = [result["text"] for result in asr(copies(audios))]
    assert plain != expected and plain[1] == expected[1] and plain[3] == expected[3]
    weights = [20.0, 1.0, 25.0, 3.0, 15.0]
    each = [
        decode(parts, lm, audio, phrases, discount=weight)[0].text for audio, phrases, weight in zip(audios, PHRASES, weights)
    ]
    found = asr(copies(audios), phrases=PHRASES, phrase_weight=weights, batch_size=3)
    assert [result["text"] for result in found] == each
    every = [decode(parts, lm, audio, PHRASES[0], discount=weight)[0].text for audio, weight in zip(audios, weights)]
    found = asr(copies(audios), phrases=PHRASES[0], phrase_weight=weights, batch_size=2)
    assert [result["text"] for result in found] == every
    # The discount that GraphDecoder has by default.
    assert asr(audios[0].copy(), phrases=PHRASES[0])["text"] == decode(parts, lm, audios[0], PHRASES[0])[0].text


def test_a_language_model_for_each_recording(asr, lm, audios):
    other = NGramLM.train(["turn the lights off", "jazz quickly vexed him"] * 5, tokenizer=asr.tokenizer, order=3)
    lms, weights = [lm, other, None, other, lm], [0.9, 2.5, 0.4, 1.5, 0.3]
    expected = [
        asr(audio.copy(), lm=[model, lm][model is None], lm_weight=weight if model else 0.0)
        for audio, model, weight in zip(audios, lms, weights)
    ]
    assert asr(copies(audios), lm=lms, lm_weight=weights, batch_size=2) == expected
    assert expected != asr(copies(audios))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_it_runs_on_over_chunks(asr, parts, lm, audios, batch_size):
    """What has been cut is decoded in one go: cutting changes what the model hears at the seams, and no more."""
    whole = asr(audios[0].copy(), chunk_length_s=60.0, batch_size=batch_size)
    assert whole["text"] == decode(parts, lm, audios[0])[0].text
    cut = asr(audios[0].copy(), chunk_length_s=1.6, batch_size=batch_size, phrases=PHRASES[0])
    assert cut == asr(audios[0].copy(), chunk_length_s=1.6, phrases=PHRASES[0])
    assert len(cut["text"].split()) >= len(whole["text"].split()) - 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "lattice"}, "strategy should be one of"),
        ({"repeats": "run"}, "repeats has no meaning in a graph"),
        ({"merge": "text"}, "merge has no meaning in a graph"),
        ({"num_beams": 0}, "max_active should be"),
        ({"num_return_sequences": 20}, r"from 1 to 12 \(max_active\)"),
        ({"phrase_weight": -1.0, "phrases": ["jazz"]}, "discount should be a finite number from 0"),
        ({"phrases": ["jazz"], "lm": None, "strategy": "graph"}, "strategy given without lm="),
    ],
)
def test_bad_settings(asr, audios, settings, message):
    with pytest.raises(ValueError, match=message):
        asr(audios[0].copy(), **settings)


def test_boosters_are_contexts_too(asr, lm, parts, audios):
    booster = PhraseBooster(PHRASES[0], asr.tokenizer, weight=20.0)
    found = asr(audios[0].copy(), phrases=booster)["text"]
    assert found == decode(parts, lm, audios[0], booster)[0].text != asr(audios[0].copy())["text"]
