"""Settings that each recording has for itself: whatever the input and the batches, as if it were the only one of its call."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile
import torch
import transformers
from speech_models import whisper_parts
from tiny_transducers import demo_transducer
from torch.utils.data import Dataset
from transformers import AutoProcessor, pipeline

from hf_ngpulm import NGramLM
from hf_ngpulm.automaton.pool import AutomatonPool
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.pipelines.per_item import PER_ITEM, RECORDING, Numbered, NumberedInputs, listed_values, numbered, numbers_in

DEMO = bundled("examples/speech/harbour")
TASK = "automatic-speech-recognition"


# -- numbers


def test_recordings_are_numbered():
    for inputs in (["a", "b"], (letter for letter in "ab")):
        assert list(NumberedInputs(inputs, {"lm": 2, "lm_weight": 2})) == [Numbered("a", 0), Numbered("b", 1)]
    assert len(NumberedInputs(["a", "b"], {"lm": 2})) == 2
    assert list(numbered(iter([{"x": 1}, {"x": 2}]), 7)) == [{"x": 1, RECORDING: 7}, {"x": 2, RECORDING: 7}]
    assert list(numbered(iter([{"x": 1}]), None)) == [{"x": 1}]
    batch = {"x": 1, RECORDING: [3, 3, 4]}
    assert numbers_in(batch) == [3, 3, 4] and batch == {"x": 1} and numbers_in(batch) is None
    assert numbers_in({RECORDING: 0}) == [0]


def test_other_numbers_of_recordings():
    with pytest.raises(ValueError, match="lm lists 3 values, one per recording, but there are 2 recordings"):
        NumberedInputs(["a", "b"], {"lm": 3})
    with pytest.raises(ValueError, match="lm_weight lists 3 values, one per recording, but there are 2 recordings"):
        NumberedInputs(["a", "b"], {"lm": 2, "lm_weight": 3})
    with pytest.raises(ValueError, match="lengths differ: lm 2 and lm_weight 3"):
        NumberedInputs(iter("ab"), {"lm": 2, "lm_weight": 3})
    with pytest.raises(ValueError, match="lm lists 3 values, one per recording, but there are 2 recordings"):
        list(NumberedInputs(iter("ab"), {"lm": 3}))
    asked = []
    with pytest.raises(ValueError, match="lm lists 2 values, one per recording, but there are at least 3 recordings"):
        asked.extend(NumberedInputs(iter("abcdefgh"), {"lm": 2}))  # not read to its end
    assert [each.audio for each in asked] == ["a", "b"]


def test_what_a_list_is():
    lm = object()
    assert listed_values({"lm": lm, "lm_weight": 0.5, "beta": None, "num_beams": 4}) == {}
    assert listed_values({"lm": "folder", "lm_weight": np.float32(0.5)}) == {}
    assert listed_values({"lm": (lm, None)}) == {"lm": [lm, None]}
    for given in ([0.5, 2], (0.5, 2), torch.tensor([0.5, 2.0]), np.array([0.5, 2.0])):
        for name in ("lm_weight", "beta"):
            assert listed_values({name: given})[name].tolist() == [0.5, 2.0]
    with pytest.raises(ValueError, match=r"lm_weight should be a finite number.*, got 'heavy'"):
        listed_values({"lm_weight": [0.5, "heavy"]})
    assert listed_values({"phrases": ["anna", ("bob", 2.0)]}) == {}
    assert listed_values({"phrases": [["anna"], None]}) == {"phrases": [["anna"], None]}
    assert set(PER_ITEM) == {"lm", "lm_weight", "ilm_weight", "source_weight", "beta", "phrases", "phrase_weight"}


# -- pipelines of each family: parts, three LMs (one None), weights, and recordings of different lengths


class Clips(Dataset):
    def __init__(self, audios):
        self.audios = audios

    def __len__(self):
        return len(self.audios)

    def __getitem__(self, number):
        return self.audios[number].copy()  # an IndexError ends it


class Case:
    def __init__(self, parts, lms, weights, audios, chunk, **settings):
        self.parts, self.lms, self.weights, self.audios, self.chunk = parts, lms, weights, audios, chunk
        self.settings = settings
        self.asr = pipeline(TASK, **parts, **settings)

    def each(self, silent=None, **settings):
        """One by one, each with its own; `silent`: an LM whose weight of 0 stands in for None."""
        return [
            self.asr(audio.copy(), lm=lm or silent, **({"lm_weight": weight} if lm or silent else {}), **settings)
            for audio, lm, weight in zip(self.audios, self.lms, self.weights)
        ]

    def together(self, inputs=None, **settings):
        inputs = self.copies() if inputs is None else inputs
        return list(self.asr(inputs, lm=self.lms, lm_weight=self.weights, **settings))

    def copies(self):
        return [audio.copy() for audio in self.audios]


def demo_audios():
    lines = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()][:5]
    return [soundfile.read(DEMO / line["audio"], dtype="float32")[0] for line in lines]


def demo_lms(tokenizer):
    """What each of them likes shows: one knows the demo's words, the others hardly any."""
    demo = NGramLM.from_arpa(DEMO / "lm.arpa.gz", tokenizer)
    other = NGramLM.train(["turn the lights off", "jazz quickly vexed him"] * 5, tokenizer=tokenizer, order=3)
    return [demo, other, None, other, demo]


def ctc():
    processor = AutoProcessor.from_pretrained(bundled("examples/models/ctc"))
    model = transformers.AutoModelForCTC.from_pretrained(bundled("examples/models/ctc"), dtype=torch.float32)
    parts = {"model": model, "tokenizer": processor.tokenizer, "feature_extractor": processor.feature_extractor}
    return Case(
        parts, demo_lms(processor.tokenizer), [0.9, 2.5, 0.0, 1.5, 0.3], demo_audios(), {"chunk_length_s": 1.6}, num_beams=1
    )


def transducer(name):
    parts = demo_transducer(name)
    parts["model"].joint.head.bias.data[257] = 2.0  # fewer blanks
    # Encoders feel the padding of a batch: clips of one length, and chunks that have it, too.
    audios = [audio[7680:33280] for audio in demo_audios()]
    chunk = {"chunk_length_s": 0.8, "stride_length_s": 0.0}
    return Case(parts, demo_lms(parts["tokenizer"]), [1.0, 0.6, 0.0, 0.3, 0.2], audios, chunk, num_beams=1)


def seq2seq(tmp_path):
    parts = whisper_parts(tmp_path / "tokenizer.json")
    texts = ["play the next song", "jazz quickly vexed him big fop"], ["zzz yyy xxx", "qqq kk jj wwww"], ["aaa bb cc dd"]
    first, second, third = (NGramLM.train(each * 5, tokenizer=parts["tokenizer"], order=3) for each in texts)
    generator = np.random.default_rng(0)
    audios = [generator.standard_normal(length).astype(np.float32) / 9 for length in (16000, 9000, 14000, 12000, 16000)]
    chunk = {"chunk_length_s": 0.5, "ignore_warning": True}
    lms = [first, second, None, third, second]
    return Case(parts, lms, [0.9, 1.0, 0.0, 0.6, 0.5], audios, chunk, max_new_tokens=9, num_beams=1)


FAMILIES = {
    "ctc": lambda folder: ctc(),
    "rnnt": lambda folder: transducer("ParakeetForRNNT"),
    "tdt": lambda folder: transducer("ParakeetForTDT"),
    "seq2seq": seq2seq,
}
if not hasattr(transformers, "ParakeetForRNNT"):
    del FAMILIES["rnnt"], FAMILIES["tdt"]


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    return FAMILIES[request.param](tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="module")
def alone(case):
    return case.each()


def test_the_settings_show(case, alone):
    """Or none of the tests below could fail."""
    same = [case.asr(audio.copy(), lm=case.lms[0], lm_weight=case.weights[0]) for audio in case.audios]
    assert [own != other for own, other in zip(alone, same)] == [False, True, True, True, True]
    heavy = [case.asr(audio.copy(), lm=lm, lm_weight=9.0) for audio, lm in zip(case.audios, case.lms) if lm]
    assert sum(own != other for own, other in zip(heavy, [*alone[:2], *alone[3:]])) >= 3


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_each_recording_has_its_own(batch_size, case, alone):
    assert case.together(batch_size=batch_size) == alone
    assert case.together((audio for audio in case.copies()), batch_size=batch_size) == alone
    assert case.together(Clips(case.audios), batch_size=batch_size) == alone


def test_one_of_two_is_a_list(case):
    expected = [case.asr(audio.copy(), lm=case.lms[0], lm_weight=weight) for audio, weight in zip(case.audios, case.weights)]
    assert case.asr(case.copies(), lm=case.lms[0], lm_weight=torch.tensor(case.weights), batch_size=2) == expected
    with_lm = pipeline(TASK, **case.parts, **case.settings, lm=case.lms[0], lm_weight=case.weights)
    assert with_lm(case.copies(), batch_size=3) == expected  # a pipeline's list
    assert with_lm(case.copies(), lm_weight=case.weights[1], batch_size=2) == [
        case.asr(audio.copy(), lm=case.lms[0], lm_weight=case.weights[1]) for audio in case.audios
    ]
    expected = [case.asr(audio.copy(), lm=lm) for audio, lm in zip(case.audios, case.lms)]
    assert case.asr(case.copies(), lm=case.lms, batch_size=2) == expected


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "ctc"])
def test_weights_of_the_lm_inside(family, tmp_path):
    case, given = FAMILIES[family](tmp_path), [0.0, 0.5, 0.2, 0.9, 0.4]
    of_lm = {"lm": case.lms[0], "lm_weight": case.weights[0]}
    expected = [case.asr(audio.copy(), **of_lm, ilm_weight=weight) for audio, weight in zip(case.audios, given)]
    assert expected != [case.asr(audio.copy(), **of_lm, ilm_weight=0.0) for audio in case.audios]
    assert case.asr(case.copies(), **of_lm, ilm_weight=given, batch_size=2) == expected


def test_a_single_recording(case, alone):
    assert case.asr(case.audios[1].copy(), lm=[case.lms[1]], lm_weight=[case.weights[1]]) == alone[1]
    assert case.asr([case.audios[1].copy()], lm=[case.lms[1]], lm_weight=[case.weights[1]], batch_size=2) == [alone[1]]


def test_beams(case):
    settings = {"num_beams": 3}
    expected = case.each(**settings)
    assert case.together(**settings, batch_size=3) == expected


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_chunks(batch_size, case):
    """A batch may hold chunks of several recordings."""
    # Without an LM the stock pipeline cuts; elsewhere than between frames, where it can tell frames at all.
    expected = case.each(silent=case.lms[0] if hasattr(case.asr, "_decode") else None, **case.chunk)
    assert case.together(**case.chunk, batch_size=batch_size) == expected
    assert case.together((audio for audio in case.copies()), **case.chunk, batch_size=batch_size) == expected


def test_no_recording_has_one(case):
    nones = [None] * len(case.audios)
    expected = case.asr(case.copies(), lm=None, batch_size=2)
    assert case.asr(case.copies(), lm=nones, batch_size=2) == expected
    assert case.asr(case.copies(), lm=nones, lm_weight=case.weights, batch_size=2) == expected
    with pytest.raises(ValueError, match="lm lists 5 values, one per recording, but there are 2 recordings"):
        case.asr(case.copies()[:2], lm=nones)


def test_lists_for_another_number(case):
    with pytest.raises(ValueError, match="lm lists 5 values, one per recording, but there are 4 recordings"):
        case.asr(case.copies()[:4], lm=case.lms)
    with pytest.raises(ValueError, match="lm_weight lists 2 values, one per recording, but there are 1 recordings"):
        case.asr(case.audios[0].copy(), lm=case.lms[0], lm_weight=[1.0, 2.0])
    with pytest.raises(ValueError, match="lm lists 5 values, one per recording, but there are 4 recordings"):
        list(case.asr((audio for audio in case.copies()[:4]), lm=case.lms, batch_size=2))
    with pytest.raises(ValueError, match="lm lists 2 values, one per recording, but there are at least 3 recordings"):
        list(case.asr((audio for audio in case.copies()), lm=case.lms[:2], batch_size=2))


def test_models_are_copied_once(case, monkeypatch):
    added, add = [], AutomatonPool.add

    def noting(pool, key, automaton):
        added.extend([key] if key not in pool.places else [])
        return add(pool, key, automaton)

    monkeypatch.setattr(AutomatonPool, "add", noting)
    case.together(batch_size=2)
    assert len(added) == len({id(lm) for lm in case.lms if lm})


def test_what_comes_along_stays(case, alone):
    named = [{"raw": audio, "sampling_rate": 16000, "name": str(place)} for place, audio in enumerate(case.copies())]
    results = case.together(named, batch_size=2)
    assert [result["text"] for result in results] == [result["text"] for result in alone]
    assert all(RECORDING not in result for result in results)


PHRASES = [["jazz", "the lights"], None, [("zzz", 2.0), "play"], [], ["quickly vexed", "turn"]]


@pytest.mark.parametrize("with_lm", [False, True])
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_phrases(case, with_lm, settings):
    """A context for each recording, and a weight."""
    weights = [20.0, 25.0, 22.0, 21.0, 30.0]
    settings = settings | ({"lm": case.lms[1], "lm_weight": 0.1} if with_lm else {})
    expected = [
        case.asr(audio.copy(), **({"phrases": phrases, "phrase_weight": weight} if phrases is not None else {}), **settings)
        for audio, phrases, weight in zip(case.audios, PHRASES, weights)
    ]
    given = {"phrases": PHRASES, "phrase_weight": weights}
    assert case.asr(case.copies(), **given, **settings, batch_size=2) == expected
    assert list(case.asr((audio for audio in case.copies()), **given, **settings, batch_size=3)) == expected
    plain = case.asr(case.copies(), **settings)
    assert [own != other for own, other in zip(expected, plain)].count(True) >= 2
    assert expected[1] == plain[1] and expected[3] == plain[3]
    assert case.asr(case.audios[0].copy(), phrases=PHRASES[0], phrase_weight=20.0, **settings) == expected[0]
    if not settings:
        of_pipeline = pipeline(TASK, **case.parts, **case.settings, phrases=PHRASES[0], phrase_weight=20.0)
        assert of_pipeline(case.audios[0].copy()) == expected[0]
        assert of_pipeline(case.audios[1].copy(), phrases=None, phrase_weight=None) == plain[1]


def test_phrases_are_kept_from_call_to_call(case, monkeypatch):
    """And with them the language model's place beside them: another call with other phrases copies no more than these."""
    settings = {"lm": case.lms[0], "lm_weight": 0.1}
    case.asr(case.audios[0].copy(), phrases=["jazz"], **settings)
    added, add = [], AutomatonPool.add

    def noting(pool, key, automaton):
        added.extend([key] if key not in pool.places else [])
        return add(pool, key, automaton)

    monkeypatch.setattr(AutomatonPool, "add", noting)
    case.asr(case.audios[0].copy(), phrases=["jazz"], **settings)
    assert not added
    case.asr(case.audios[0].copy(), phrases=["jazz", "play"], **settings)
    assert len(added) == 1


def test_phrases_that_are_refused(case):
    with pytest.raises(ValueError, match="phrases lists 5 values, one per recording, but there are 4 recordings"):
        case.asr(case.copies()[:4], phrases=PHRASES)
    with pytest.raises(TypeError, match=r"each item should be one recording's list, but 'jazz' is a text: write \['jazz'\]"):
        case.asr(case.copies()[:2], phrases=["jazz", None])
    with pytest.raises(ValueError, match="phrase_weight given without phrases"):
        case.asr(case.audios[0].copy(), phrase_weight=2.0)
    with pytest.raises(ValueError, match="phrase 0 is empty"):
        case.asr(case.audios[0].copy(), phrases=[""])


def test_language_models_by_path(case, alone, tmp_path):
    first, second, *others = case.lms
    first.save_pretrained(tmp_path / "first")
    second.to_arpa(tmp_path / "second.arpa")
    lms = [str(tmp_path / "first"), tmp_path / "second.arpa", *others]
    results = case.asr(case.copies(), lm=lms, lm_weight=case.weights, batch_size=2)
    assert [result["text"] for result in results] == [result["text"] for result in alone]


# -- Whisper's windows


@pytest.fixture(scope="module")
def long_recordings(tmp_path_factory):
    case = seq2seq(tmp_path_factory.mktemp("long"))
    generator = np.random.default_rng(0)
    case.audios = [generator.standard_normal(length).astype(np.float32) / 9 for length in (40000, 30000, 52000, 25000, 17000)]
    case.weights = [2.0, 3.0, 0.0, 2.5, 1.0]
    return case


FALLBACK = {"temperature": (0.0, 0.0), "logprob_threshold": -1.0, "compression_ratio_threshold": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"generate_kwargs": FALLBACK}], ids=["greedy", "beams", "fallback"])
def test_long_recordings(settings, long_recordings):
    """Of which some end before others; the stock pipeline can't make a batch of any two lengths."""
    case, settings = long_recordings, {"return_timestamps": True, **settings}
    expected = case.each(**settings)
    assert sum(own != case.asr(audio.copy(), lm=None, **settings) for own, audio in zip(expected, case.audios)) >= 3
    for batch_size in (1, 2, 3, 5):
        assert case.together(**settings, batch_size=batch_size) == expected


# -- what only one family has


def test_a_bonus_for_each():
    case, betas = ctc(), [0.0, 6.0, 3.0, 1.0, -2.0]
    settings = {"lm": case.lms[0], "num_beams": 3}
    expected = [case.asr(audio.copy(), beta=beta, **settings) for audio, beta in zip(case.audios, betas)]
    assert case.asr(case.copies(), beta=betas, batch_size=2, **settings) == expected
    assert case.asr(case.copies(), beta=betas[0], **settings) != expected


def test_in_a_worker_of_its_own():
    case = ctc()
    assert case.together(num_workers=1, batch_size=2) == case.each()
