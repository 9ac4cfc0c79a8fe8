"""Wherever no weight is given what an LM remembers for the recogniser decodes, and a given weight goes before it."""

from __future__ import annotations

import copy
import json
import logging
import shutil

import numpy as np
import pytest
import soundfile
import torch
import transformers
from speech_models import whisper, whisper_parts
from tiny_transducers import demo_transducer
from transformers import AutoModelForCTC, AutoProcessor

from hf_ngpulm import CTCDecoder, NGramLM, NGramLogitsProcessor, PhraseBooster, StreamingDecoder, TransducerDecoder
from hf_ngpulm.audio import StreamingRecognizer
from hf_ngpulm.cli.app import run
from hf_ngpulm.cli.models import load_streaming
from hf_ngpulm.cli.options import Chunks, Decoding
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.config import tuned
from hf_ngpulm.config.tuned import ModelIdentity, TunedDecoding, with_remembered
from hf_ngpulm.evaluation import SettingsMismatchError, evaluate, read_recordings
from hf_ngpulm.generation import seq2seq_generate, transducer_generate
from hf_ngpulm.models import HatForASR

DEMO = bundled("examples/speech/harbour")
CTC, HAT = str(bundled("examples/models/ctc")), str(bundled("examples/models/hat"))
CLIP = str(DEMO / "clips" / "01.flac")
GREEDY, BEAM = {"lm_weight": 0.9, "num_beams": 1}, {"lm_weight": 1.7, "beta": 4.5, "num_beams": 4}
ALSD = {"lm_weight": 1.3, "ilm_weight": 0.4, "strategy": "alsd", "num_beams": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The repo with the strategies, as it would lie on the Hub."""
    copied = tmp_path_factory.mktemp("repo") / "custom_generate"
    shutil.copytree(bundled("examples/custom_generate"), copied)
    (copied / "custom_generate/requirements.txt").unlink()  # where the source tree isn't installed
    return str(copied)


@pytest.fixture(scope="module")
def samples():
    return soundfile.read(CLIP, dtype="float32")[0]


@pytest.fixture(scope="module")
def ctc(samples):
    """The bundled CTC model, its processor, and its logits for a clip."""
    model, processor = AutoModelForCTC.from_pretrained(CTC, dtype=torch.float32), AutoProcessor.from_pretrained(CTC)
    with torch.inference_mode():
        logits = model(**processor(samples, sampling_rate=16000, return_tensors="pt")).logits
    return model, processor, logits


@pytest.fixture(scope="module")
def hat(samples):
    model, processor = HatForASR.from_pretrained(HAT, dtype=torch.float32), AutoProcessor.from_pretrained(HAT)
    features = processor.feature_extractor(samples, sampling_rate=16000, return_tensors="pt")
    return model, processor, {name: features[name] for name in ("input_features", "attention_mask")}


@pytest.fixture(scope="module")
def plain(ctc):
    """An LM that remembers nothing."""
    return NGramLM.train((DEMO / "text.txt").read_text().splitlines()[:500], tokenizer=ctc[1].tokenizer, order=3)


def remembering(lm, model, *settings, **identity):
    lm = copy.copy(lm)
    for of_a_search in settings:
        lm.remember(TunedDecoding(ModelIdentity(**(vars(ModelIdentity.of(model)) | identity)), of_a_search, {}))
    return lm


def scores(hypotheses):
    return [(hypothesis.text, hypothesis.score) for hypothesis in hypotheses[0]]


def test_ctc_decoder(ctc, plain, caplog):
    model, processor, logits = ctc

    def found(lm, **settings):
        return scores(CTCDecoder(processor, lm, **settings)(logits))

    lm = remembering(plain, model, GREEDY, BEAM)
    assert len({str(found(plain, **given)) for given in (GREEDY, BEAM, {}, {"num_beams": 2})}) == 4
    assert found(lm, model=model) == found(plain, **BEAM)  # the newest
    assert found(lm, model=model, num_beams=1) == found(plain, **GREEDY)
    assert found(lm, model=model, num_beams=2) == found(plain, **{**BEAM, "num_beams": 2})
    assert found(lm, model=model, beta=1.0) == found(plain, **{**BEAM, "beta": 1.0})
    for given in ({"lm_weight": 0.3}, {"lm_weight": torch.tensor([0.3]), "num_beams": 4}):
        assert found(lm, model=model, **given) == found(plain, **given)
    # Another model's, and lists, of which nothing is remembered.
    assert found(remembering(plain, model, BEAM, fingerprint="0" * 64), model=model) == found(plain)
    assert found([lm], model=model) == found(plain)
    # Where the model isn't known, it is said, once, and not guessed.
    tuned._told.clear()
    with caplog.at_level(logging.WARNING):
        assert found(lm) == found(lm) == found(plain)
    (told,) = [record.message for record in caplog.records if "remembers weights for ctc" in record.message]
    assert "pass model=" in told


def test_what_is_remembered_of_phrases(ctc, plain):
    model, processor, logits = ctc
    lm = remembering(plain, model, {"lm_weight": 0.9, "phrase_weight": 2.5})  # of greedy search, as any without beams
    phrases = PhraseBooster(["harbour master"], processor.tokenizer)
    expected = scores(CTCDecoder(processor, plain, **GREEDY, phrases=phrases, phrase_weight=2.5)(logits))
    assert scores(CTCDecoder(processor, lm, phrases=phrases, model=model)(logits)) == expected
    given = scores(CTCDecoder(processor, lm, phrases=phrases, phrase_weight=0.1, model=model)(logits))
    assert given == scores(CTCDecoder(processor, plain, **GREEDY, phrases=phrases, phrase_weight=0.1)(logits)) != expected


def test_transducer_decoder_and_generate_of_this_packages_models(hat, plain):
    model, processor, inputs = hat
    lm = remembering(plain, model, GREEDY | {"strategy": "greedy"}, ALSD)

    def found(lm, **settings):
        decoder = TransducerDecoder(model, processor, lm, **settings)
        hypotheses = scores(decoder(**inputs))
        tokens = model.generate(**inputs, lm=lm, **settings).sequences[0].tolist()
        assert hypotheses[0][0] == processor.tokenizer.decode([token for token in tokens if token != decoder.model.blank_id])
        return hypotheses

    assert len({str(found(plain, **given)) for given in (GREEDY, ALSD, {})}) == 3
    assert found(lm) == found(plain, **ALSD)
    assert found(lm, strategy="greedy") == found(lm, num_beams=1) == found(plain, **GREEDY)
    assert found(lm, ilm_weight=0.0) == found(plain, **{**ALSD, "ilm_weight": 0.0})
    assert found(lm, lm_weight=0.2) == found(plain, lm_weight=0.2)
    # A model of somebody else's isn't known, and none the worse.
    own = TransducerDecoder(TransducerDecoder(model, processor).model, processor, lm)
    assert scores(own(**inputs)) == found(plain, **ALSD)  # it is the same model, taken apart


@pytest.mark.skipif(not hasattr(transformers, "ParakeetForTDT"), reason="this version of Transformers has no TDT")
def test_the_strategy_for_transducers(samples, plain, folder):
    parts = demo_transducer("ParakeetForTDT")
    model = parts["model"]
    inputs = parts["feature_extractor"](samples[:24000], sampling_rate=16000, return_tensors="pt")
    lm = remembering(plain, model, {"lm_weight": 4.0, "strategy": "greedy"}, {**ALSD, "lm_weight": 3.0})

    def found(lm, called=transducer_generate, **settings):
        given = {**inputs, **settings, "trust_remote_code": True} if called is folder else {**inputs, **settings}
        return model.generate(**given, custom_generate=called, lm=lm).sequences.tolist()

    for called in (transducer_generate, folder):
        assert found(lm, called) == found(plain, **{**ALSD, "lm_weight": 3.0}) != found(plain)
        assert found(lm, called, num_beams=1) == found(plain, lm_weight=4.0, num_beams=1)
        assert found(lm, called, lm_weight=0.1) == found(plain, lm_weight=0.1)


@pytest.fixture(scope="module")
def attention(samples, tmp_path_factory):
    """A tiny Whisper, inputs, and an LM for it."""
    parts = whisper_parts(tmp_path_factory.mktemp("whisper") / "t.json")
    texts = (DEMO / "text.txt").read_text().splitlines()[:300]
    lm = NGramLM.train(texts, tokenizer=parts["tokenizer"], order=3)
    features = parts["feature_extractor"](samples, sampling_rate=16000, return_tensors="pt").input_features
    return parts["model"], parts["tokenizer"], features, lm


def test_the_logits_processor(attention):
    model, tokenizer, _, plain = attention
    lm = remembering(plain, model, {"lm_weight": 3.0, "num_beams": 1}, {"lm_weight": 2.0, "num_beams": 3, "score_eos": True})

    def found(lm, weight=None, **settings):
        processor = NGramLogitsProcessor(lm, weight, model=model, tokenizer=tokenizer, **settings)
        text = tokenizer("the", add_special_tokens=False)["input_ids"]
        return processor(torch.tensor([[29, 30, 31, *text]]), torch.zeros(1, model.config.vocab_size)).tolist()

    newest = found(plain, 2.0, score_eos=True)
    assert found(lm) == newest and len({str(row) for row in (newest, found(plain), found(plain, 2.0))}) == 3
    assert found(lm, score_eos=False) == found(plain, 2.0)
    assert found(lm, 0.2) == found(plain) and found(lm, torch.tensor([0.7])) == found(plain, 0.7)


def test_the_strategy_for_attention(attention, folder):
    model, tokenizer, features, plain = attention
    lm = remembering(plain, model, {"lm_weight": 9.0, "num_beams": 1}, {"lm_weight": 30.0, "num_beams": 3})

    def found(lm, called=seq2seq_generate, **settings):
        settings |= {"trust_remote_code": True} if called is folder else {}
        given = dict(input_features=features, lm=lm, processor=tokenizer, max_new_tokens=9, **settings)
        return model.generate(**given, custom_generate=called).tolist()

    greedy, beam = found(plain, lm_weight=9.0), found(plain, lm_weight=30.0, num_beams=3)
    assert greedy != found(plain) and beam != found(plain, num_beams=3)
    for called in (seq2seq_generate, folder):
        assert found(lm, called) == greedy  # by the search that `generate` does
        assert found(lm, called, num_beams=3) == beam
        assert found(lm, called, lm_weight=0.3) == found(plain, lm_weight=0.3)
    config = model.generation_config
    config.ngram_lm_weight = 0.4  # said of the LM that it names
    try:
        assert found(lm) == greedy
    finally:
        del config.ngram_lm_weight


def test_streams(ctc, hat, plain, samples):
    for (model, processor, _), settings in ((ctc, BEAM), (hat, ALSD)):
        lm = remembering(plain, model, settings)

        def found(lm, model=model, processor=processor, **given):
            recognizer = StreamingRecognizer(model, processor, max_streams=1, lm=lm, **given)
            sid = recognizer.open()
            recognizer.push(sid, samples)
            recognizer.end(sid)
            while recognizer.step():
                pass
            return scores([recognizer.close(sid)])

        assert found(lm) == found(plain, **settings) != found(plain)
        assert found(lm, lm_weight=0.2) == found(plain, lm_weight=0.2)
    model, processor, logits = ctc
    stream = StreamingDecoder(CTCDecoder(processor, remembering(plain, model, BEAM), model=model), max_streams=1)
    sid = stream.open()
    stream.step({sid: logits[0]})
    assert scores([stream.close(sid)]) == scores(CTCDecoder(processor, plain, **BEAM)(logits))


@pytest.fixture(scope="module")
def folders(ctc, plain, tmp_path_factory):
    """LMs on disk, one that remembers a beam for the CTC model and one that doesn't."""
    path = tmp_path_factory.mktemp("lms")
    remembering(plain, ctc[0], BEAM).save_pretrained(path / "tuned")
    plain.save_pretrained(path / "plain")
    return str(path / "tuned"), str(path / "plain")


@pytest.mark.slow
def test_commands(folders, capsys):
    by_hand = ["--lm-weight", "1.7", "--num-beams", "4"]  # stream has no --beta

    def printed(*arguments):
        assert run([*arguments, "--device", "cpu", "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()][-1]

    tuned_one, plain_one = folders
    stream = ["stream", CTC, CLIP, "--no-wait", "--lm"]
    transcribe = ["transcribe", CLIP, "--model", CTC, "--n-best", "2", "--lm"]
    asked = printed(*transcribe, plain_one, *by_hand, "--beta", "4.5")
    assert printed(*transcribe, tuned_one) == asked != printed(*transcribe, plain_one, "--num-beams", "2")
    given = ["--lm-weight", "0.1", "--num-beams", "2"]
    assert printed(*transcribe, tuned_one, *given) == printed(*transcribe, plain_one, *given)
    assert printed(*stream, tuned_one, *given) == printed(*stream, plain_one, *given)
    recognizers = [
        load_streaming(CTC, "cpu", Decoding(tuned_one, lm_weight=weight), Chunks()) for weight in (None, 0.1)
    ]  # serve's, too
    decoders = [recognizer.decoder.decoder for recognizer in recognizers]
    assert [(decoder.fusion.weight, decoder.options.num_beams, decoder.options.beta) for decoder in decoders] == [
        (1.7, 4, 4.5),
        (0.1, 4, None),
    ]
    tuned_text = printed(*stream, tuned_one)["text"]
    assert tuned_text == printed(*transcribe, tuned_one)["text"] != printed(*stream, plain_one, "--num-beams", "1")["text"]


def test_an_evaluation_isnt_gone_on_with_after_tuning(ctc, folders, tmp_path):
    asr = transformers.pipeline("automatic-speech-recognition", model=CTC, dtype=torch.float32, device="cpu")
    clips, output = read_recordings(DEMO / "clips.jsonl", limit=2), tmp_path / "found.jsonl"
    first = evaluate(asr, clips, lm=folders[1], num_beams=4, output=output)
    assert first.settings["num_beams"] == 4
    shutil.copy(folders[0] + "/config.json", tmp_path / "config.json")
    lm = NGramLM.from_pretrained(folders[0])
    with pytest.raises(SettingsMismatchError, match="lm_weight"):
        evaluate(asr, clips, lm=lm, num_beams=4, output=output)
    found = evaluate(asr, clips, lm=lm)
    assert (found.settings["lm_weight"], found.settings["beta"], found.settings["num_beams"]) == (1.7, 4.5, 4)


def test_a_model_is_looked_at_again_when_it_has_changed(ctc):
    model = copy.deepcopy(ctc[0])
    before = ModelIdentity.of(model)
    assert ModelIdentity.of(model) == before
    with torch.no_grad():
        next(model.parameters()).neg_()
    assert ModelIdentity.of(model).fingerprint != before.fingerprint
    model.load_state_dict(ctc[0].state_dict())
    assert ModelIdentity.of(model) == before
    model.ctc_head.weight = torch.nn.Parameter(-model.ctc_head.weight.detach())
    assert not ModelIdentity.of(model).is_same(before)


def test_the_rule_by_itself(plain):
    model = whisper().model
    lm = remembering(plain, model, {"lm_weight": 0.5, "num_beams": 4})
    assert with_remembered(lm, model, {"lm_weight": None, "beta": None}) == {"lm_weight": 0.5, "beta": None}
    assert with_remembered(lm, ModelIdentity.of(model), {"beta": 1.0, "lm_weight": None}) == {"beta": 1.0, "lm_weight": 0.5}
    for given in ({"lm_weight": 0.0}, {"lm_weight": np.float32(0)}, {"lm_weight": None, "num_beams": 1}):
        assert with_remembered(lm, model, given) == given
    for nothing in (None, [lm], "org/lm"):
        assert with_remembered(nothing, model, {"lm_weight": None}) == {"lm_weight": None}
