"""What a language model's config says of decoding: which models it is for, what is refused, and what pipelines make of it."""

import copy
import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from speech_models import whisper, whisper_parts
from tiny_transducers import FAMILIES, demo_transducer
from transformers import AutoModelForCTC, AutoProcessor, pipeline

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramFormatError, NGramLM
from hf_ngpulm.audio import StreamingRecognizer
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.config.tuned import SETTINGS, ModelIdentity, TunedDecoding, tuned_for

DEMO = bundled("examples/speech/harbour")
TASK = "automatic-speech-recognition"


def ctc_parts(tmp_path):
    processor = AutoProcessor.from_pretrained(bundled("examples/models/ctc"))
    model = AutoModelForCTC.from_pretrained(bundled("examples/models/ctc"), dtype=torch.float32)
    return {"model": model, "tokenizer": processor.tokenizer, "feature_extractor": processor.feature_extractor}


KINDS = {
    "ctc": (ctc_parts, {"lm_weight": 1.5, "beta": 4.0, "num_beams": 4}, {"lm_weight": 0.9, "num_beams": 1}),
    "tdt": (
        lambda _: demo_transducer("ParakeetForTDT"),
        {"lm_weight": 3.0, "ilm_weight": 0.5, "strategy": "alsd", "num_beams": 3},
        {"lm_weight": 4.0, "strategy": "greedy", "num_beams": 1},
    ),
    "whisper": (
        lambda path: whisper_parts(path / "t.json"),
        {"lm_weight": 2.0, "num_beams": 3},
        {"lm_weight": 3.0, "num_beams": 1},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request, tmp_path_factory):
    """What a pipeline is made of, an LM in a folder, settings for a beam and greedy ones, and what generation needs."""
    if request.param == "tdt" and "ParakeetForTDT" not in dict(FAMILIES):
        pytest.skip("this version of Transformers has no TDT")
    make, beam, greedy = KINDS[request.param]
    path = tmp_path_factory.mktemp(request.param)
    parts = make(path)
    texts = (DEMO / "text.txt").read_text().splitlines()[:300]
    lm = NGramLM.train([text.lower() for text in texts], tokenizer=parts["tokenizer"], order=3)
    lm.save_pretrained(path / "lm")
    more = {"max_new_tokens": 9} if request.param == "whisper" else {}
    return parts, str(path / "lm"), beam, greedy, more


@pytest.fixture(scope="module")
def audios():
    return [soundfile.read(DEMO / "clips" / f"{i:02}.flac", dtype="float32")[0][:16000] for i in range(2)]


def tuned(model, settings, **changes):
    identity = replace(ModelIdentity.of(model), **changes)
    return TunedDecoding(identity, settings, {"by": "wer", "rate": 0.2, "length": 700})


def saved(source, folder, *entries):
    lm = NGramLM.from_pretrained(source)
    for entry in entries:
        lm.remember(entry)
    lm.save_pretrained(folder)
    return str(folder)


def texts(asr, audios, **settings):
    return [asr(audio.copy(), **settings)["text"] for audio in audios]


def test_pipelines_go_by_what_was_tuned_for_their_model(kind, audios, tmp_path, caplog):
    parts, source, beam, greedy, more = kind
    made = {name: value for name, value in parts.items() if name != "model"}

    def asr(model=parts["model"], **settings):
        return pipeline(TASK, model=model, **made, **more, **settings)

    lm = saved(source, tmp_path / "lm", tuned(parts["model"], greedy), tuned(parts["model"], beam))
    by_beam, by_greedy = texts(asr(lm=source, **beam), audios), texts(asr(lm=source, **greedy), audios)
    plain = asr(lm=source)
    expected = texts(plain, audios)
    with caplog.at_level(logging.WARNING):
        found = asr(lm=lm)
        assert texts(found, audios) == by_beam != expected  # the newest
    told = [record.message for record in caplog.records if "was tuned for" in record.message]
    assert len(told) <= 1 and all(f"lm_weight={beam['lm_weight']}" in message for message in told)  # once for all tests
    # The search that is asked for decides which.
    assert texts(asr(lm=lm, num_beams=1), audios) == by_greedy
    assert texts(found, audios, num_beams=1) == by_greedy and texts(found, audios) == by_beam
    # An LM that a call is given, too.
    assert texts(plain, audios, lm=lm) == by_beam and texts(plain, audios) == expected
    # A weight that is given goes before everything else.
    assert texts(asr(lm=lm, lm_weight=0.1), audios) == texts(asr(lm=source, lm_weight=0.1), audios)
    assert texts(found, audios, lm_weight=0.1) == texts(asr(lm=source, lm_weight=0.1), audios)
    # Without the LM nothing is left of it.
    assert texts(found, audios, lm=None) == texts(asr(), audios)
    # Other settings that are given stay, and the rest is as tuned.
    others = {"beta": 0.5} if "beta" in beam else {"ilm_weight": 0.0} if "ilm_weight" in beam else {"num_beams": 2}
    assert texts(asr(lm=lm, **others), audios) == texts(asr(lm=source, **(beam | others)), audios)


def test_other_models_are_unaffected(kind, audios, tmp_path):
    parts, source, beam, _, more = kind
    made = {name: value for name, value in parts.items() if name != "model"}
    expected = texts(pipeline(TASK, **parts, **more, lm=source), audios)
    for entry in (
        tuned(parts["model"], beam, model_type="other"),
        tuned(parts["model"], beam, fingerprint="0" * 64),  # the same name, other weights
    ):
        lm = saved(source, tmp_path / "lm", entry)
        assert texts(pipeline(TASK, **parts, **more, lm=lm), audios) == expected
    lm = saved(source, tmp_path / "lm2", tuned(parts["model"], beam))
    trained = copy.deepcopy(parts["model"])
    with torch.no_grad():
        next(trained.parameters()).neg_()
    own = texts(pipeline(TASK, model=trained, **made, **more, lm=source), audios)
    assert texts(pipeline(TASK, model=trained, **made, **more, lm=lm), audios) == own


def test_a_model_is_known_wherever_it_lies_and_in_any_precision(tmp_path):
    parts = ctc_parts(tmp_path)
    model = parts["model"]
    model.save_pretrained(tmp_path / "moved")
    moved = [AutoModelForCTC.from_pretrained(tmp_path / "moved", dtype=dtype) for dtype in (torch.bfloat16, torch.float16)]
    identity = ModelIdentity.of(model)
    assert identity.name == "ctc" and [ModelIdentity.of(other).name for other in moved] == ["moved", "moved"]
    assert all(identity.is_same(ModelIdentity.of(other)) for other in moved)
    assert str(tmp_path) not in json.dumps([ModelIdentity.of(other).__dict__ for other in moved])
    # Ids on the Hub name a model whatever its weights are (quantised, say); names of folders don't.
    hub = replace(identity, name="org/model")
    assert hub.is_same(replace(hub, fingerprint="other")) and not identity.is_same(replace(identity, fingerprint="other"))
    assert not hub.is_same(replace(hub, model_type="whisper"))
    with torch.no_grad():
        moved[0].ctc_head.weight.flatten()[:64].neg_()
    assert not identity.is_same(ModelIdentity.of(moved[0]))
    with pytest.raises(ValueError, match="a speech recognition model of Transformers is needed, got str"):
        ModelIdentity.of("org/model")


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return NGramLM.train([[0, 1, 2], [1, 2, 0]] * 5, vocab_size=3, order=2)


def test_entries_are_kept_and_replaced(lm, tmp_path):
    model = whisper().model
    first = tuned(model, {"lm_weight": 0.5, "num_beams": 1, "strategy": "greedy"})
    second = tuned(model, {"lm_weight": 0.7, "num_beams": 4, "strategy": "alsd", "length_normalization": False})
    for entry in (first, second, replace(first, settings={**first.settings, "lm_weight": 0.6})):
        lm.remember(entry)
    lm.save_pretrained(tmp_path)
    again = NGramLM.from_pretrained(tmp_path).config.decoding
    assert again == lm.config.decoding and [entry.settings["lm_weight"] for entry in again] == [0.7, 0.6]
    assert again[0] == second
    for given, weight in (
        ({}, 0.6), ({"num_beams": 1}, 0.6), ({"num_beams": 5}, 0.7), ({"strategy": "alsd"}, 0.7), ({"strategy": "aes"}, None),
        ({"strategy": "greedy"}, 0.6), ({"lm_weight": 1.0}, None), ({"num_beams": 3, "strategy": "alsd"}, 0.7),
    ):  # fmt: skip
        found = tuned_for(again, ModelIdentity.of(model), given)
        assert (None if found is None else found.settings["lm_weight"]) == weight, given
    assert "decoding" not in NGramLM.train([[0, 1]], vocab_size=3, order=1, discount_fallback=(0.5, 1, 1.5)).config.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"lm_weight": "heavy"}}, "lm_weight should be a number from 0 to 1000, is 'heavy'"),
        ({"settings": {"lm_weight": float("nan")}}, "lm_weight should be a number"),
        ({"settings": {"lm_weight": -1}}, "lm_weight should be a number"),
        ({"settings": {"lm_weight": 10**400}}, "lm_weight should be a number"),
        ({"settings": {"lm_weight": True}}, "lm_weight should be a number"),
        ({"settings": {"lm_weight": 1, "num_beams": 10**9}}, "num_beams should be a whole number from 1 to 1024"),
        ({"settings": {"lm_weight": 1, "num_beams": 2.5}}, "num_beams should be a whole number"),
        ({"settings": {"lm_weight": 1, "strategy": "rm -rf"}}, "strategy should be one of"),
        ({"settings": {"lm_weight": 1, "lm": "org/other"}}, "no setting is called 'lm'"),
        ({"settings": {"num_beams": 4}}, "settings should have a lm_weight"),
        ({"settings": [1]}, "settings should be an object"),
        ({"model": 7}, "model should be a name, is '7'"),
        ({"model_fingerprint": ""}, "model_fingerprint should be a name"),
        ({"measured": {"rate": []}}, "measured.rate should be a number or a word"),
    ],
)
def test_what_a_repo_says_is_checked(change, message, lm, tmp_path):
    lm.save_pretrained(tmp_path)
    good = {"model": "org/m", "model_type": "whisper", "model_fingerprint": "ab", "settings": {"lm_weight": 1}}
    config = json.loads((tmp_path / "config.json").read_text())
    for entries in ([good | change], [good, good | change]):
        (tmp_path / "config.json").write_text(json.dumps({**config, "decoding": entries}))
        with pytest.raises(NGramFormatError) as error:
            NGramLM.from_pretrained(tmp_path)
        assert message in str(error.value)
    for entries in ({}, "none", [3], [good] * 300):
        (tmp_path / "config.json").write_text(json.dumps({**config, "decoding": entries}))
        with pytest.raises(NGramFormatError, match="decoding should"):
            NGramLM.from_pretrained(tmp_path)
    with pytest.raises(NGramFormatError):
        lm.remember(TunedDecoding(ModelIdentity("m", "whisper", "ab"), {"lm_weight": np.float64("nan")}))


def test_decoders_take_all_settings():
    from hf_ngpulm.pipelines import CTCNGramPipeline, Seq2SeqNGramPipeline, TransducerNGramPipeline

    taken = {name for family in (CTCNGramPipeline, Seq2SeqNGramPipeline, TransducerNGramPipeline) for name in family.settings}
    assert SETTINGS.keys() <= taken


def test_graphs_go_by_what_was_tuned_for_them():
    """In pipelines, by themselves and online; a search of prefixes doesn't, nor is a graph searched with a beam's settings."""
    folder, source = bundled("examples/models/ctc"), DEMO / "lm.arpa.gz"
    processor, model = AutoProcessor.from_pretrained(folder), AutoModelForCTC.from_pretrained(folder).eval()
    lm = NGramLM.from_arpa(source, processor.tokenizer)
    settings = {"lm_weight": 1.3, "beta": 1.0, "strategy": "graph", "num_beams": 8, "phrase_weight": 2.5}
    lm.remember(tuned(model, settings))
    phrases = ["old lighthouse"]
    own = GraphDecoder(processor, lm, phrases=phrases, model=model)
    expected = GraphDecoder(processor, lm, 1.3, max_active=8, beta=1.0, phrases=phrases, discount=2.5)
    for decoder in (own, StreamingRecognizer(model, processor, lm=lm, phrases=phrases).decoder.decoder):
        assert isinstance(decoder, GraphDecoder) and decoder.contexts.discount == 2.5
        assert (decoder.options.max_active, decoder.options.beta, decoder.fusion.weight) == (8, 1.0, 1.3)
    logits = torch.randn(2, 30, 257, generator=torch.Generator().manual_seed(3))
    assert own(logits) == expected(logits)
    made = {"tokenizer": processor.tokenizer, "feature_extractor": processor.feature_extractor}

    def made_by(**given):
        return pipeline(TASK, model=model, **made, lm=lm, **given)._forward_params["ngram_decoder"]

    found = made_by(phrases=phrases)
    assert isinstance(found, GraphDecoder)
    assert [best.score for (best,) in found(logits)] == [best.score for (best,) in expected(logits)]
    # Who asks for another search, or can't search graphs, isn't told of it.
    beam = CTCDecoder(processor, lm=lm, model=model)
    assert (beam.options.num_beams, beam.fusion.weight) == (4, 0.8)
    assert isinstance(made_by(num_beams=4), CTCDecoder) and made_by(num_beams=4).fusion.weight == 0.8
    lm.remember(tuned(model, {"lm_weight": 0.9, "num_beams": 4}))
    assert GraphDecoder(processor, lm, model=model).fusion.weight == 1.3
    assert isinstance(StreamingRecognizer(model, processor, lm=lm).decoder.decoder, CTCDecoder)  # the newest
    assert StreamingRecognizer(model, processor, lm=lm, strategy="graph").decoder.decoder.fusion.weight == 1.3
