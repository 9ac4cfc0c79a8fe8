"""`evaluate`: its texts are the pipeline's, its rates jiwer's, whatever the data are like; also for bad data."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import jiwer
import numpy as np
import pytest
import soundfile
import torch
import transformers
from speech_models import whisper_parts
from tiny_transducers import demo_transducer

from hf_ngpulm import NGramLM
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.config.tuned import ModelIdentity, TunedDecoding
from hf_ngpulm.evaluation import Recording, SettingsMismatchError, Utterance, evaluate, read_recordings, read_results
from hf_ngpulm.evaluation.loading import BATCHES_PER_WINDOW, ahead, batches, steps
from hf_ngpulm.evaluation.parts import Parts
from hf_ngpulm.evaluation.recognition import Recogniser, cut_where_quiet, without_lm
from hf_ngpulm.sound.files import read_audio

DEMO = bundled("examples/speech/harbour")
MANIFEST = DEMO / "clips.jsonl"
TASK = "automatic-speech-recognition"


@pytest.fixture(scope="module")
def asr():
    return transformers.pipeline(TASK, model=str(bundled("examples/models/ctc")), dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def lm(asr):
    return NGramLM.from_arpa(DEMO / "lm.arpa.gz", asr.tokenizer)


@pytest.fixture(scope="module")
def clips():
    return list(read_recordings(MANIFEST, limit=16))


@pytest.fixture(scope="module")
def found(asr, lm, clips):
    return evaluate(asr, clips, batch_size=3, lm=lm, lm_weight=0.9, num_beams=1)


def hypotheses(evaluation):
    return [utterance.hypothesis for utterance in evaluation.utterances]


def decoded(pipe, clips, **settings):
    """What the pipeline says of each clip by itself."""
    return [pipe(read_audio(clip.audio, 16000), **settings)["text"] for clip in clips]


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"lm": True, "num_beams": 3, "beta": 1.0}])
def test_texts_are_the_pipelines(asr, lm, clips, settings):
    settings = settings | ({"lm": lm} if "lm" in settings else {})
    result = evaluate(asr, clips[:5], batch_size=2, **settings)
    assert hypotheses(result) == decoded(asr, clips[:5], **({"num_beams": 1} | settings))
    assert [utterance.id for utterance in result.utterances] == [clip.id for clip in clips[:5]]


def test_rates_are_jiwers(found, asr, lm, clips):
    references, texts = [clip.text for clip in clips], hypotheses(found)
    assert texts == decoded(asr, clips, lm=lm, lm_weight=0.9, num_beams=1)
    words, characters = jiwer.process_words(references, texts), jiwer.process_characters(references, texts)
    summary = found.summary()
    assert summary["wer"] == pytest.approx(100 * words.wer) and summary["cer"] == pytest.approx(100 * characters.cer)
    for name in ("substitutions", "deletions", "insertions"):
        assert summary[name] == getattr(words, name)
    assert summary["wer_interval"][0] < summary["wer"] < summary["wer_interval"][1]
    assert summary["audio_seconds"] == pytest.approx(sum(clip.seconds for clip in clips), abs=1e-3)
    assert 0 < found.clock.decoder < found.clock.model < found.clock.wall and found.clock.warm_up > 0
    assert found.rtfx == pytest.approx(found.audio_seconds / found.clock.model)
    assert found.rtfx_decoder == pytest.approx(found.audio_seconds / found.clock.decoder)


def test_figures_do_not_depend_on_batches(found, asr, lm, clips):
    again = evaluate(asr, clips[::-1], batch_size=16, lm=lm, lm_weight=0.9, num_beams=1)
    assert hypotheses(again)[::-1] == hypotheses(found)


def test_compare(found, asr, clips):
    without = evaluate(asr, clips[1:])
    compared = found.compare(without)
    assert compared.utterances == 15 and compared.alone == 1
    expected = [jiwer.wer([clip.text for clip in clips[1:]], texts) for texts in (hypotheses(found)[1:], hypotheses(without))]
    assert [compared.wer, compared.other_wer] == pytest.approx(expected)
    assert compared.comparison.p_value < 0.01
    others = [Recording(clip.id, clip.audio, text="something else") for clip in clips]
    with pytest.raises(ValueError, match="different transcripts"):
        found.compare(evaluate(asr, others))


def test_saved_and_read(found, tmp_path):
    found.save(tmp_path / "r.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    for name in ("substitutions", "deletions", "insertions"):
        assert sum(line[name] for line in lines) == getattr(found.scores.words, name)
    assert all(line["decode_seconds"] > 0 and line["score"] < 0 for line in lines)
    again = read_results(tmp_path / "r.jsonl")
    assert again.utterances == found.utterances and again.summary()["wer"] == found.summary()["wer"]
    (tmp_path / "r.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"r\.jsonl, line 1: not a result"):
        read_results(tmp_path / "r.jsonl")


def test_entities_and_phrases_of_each_recording(asr, clips):
    words = [clip.text.split() for clip in clips]
    named = [Recording(c.id, c.audio, text=c.text, entities=(" ".join(w[-2:]),)) for c, w in zip(clips, words)]
    plain, boosted = evaluate(asr, named), evaluate(asr, named, entities_as_phrases=True, phrase_weight=2.0, num_beams=4)
    expected = asr([read_audio(c.audio, 16000) for c in clips], phrases=[list(c.entities) for c in named], phrase_weight=2.0,
                   num_beams=4)  # fmt: skip
    assert hypotheses(boosted) == [out["text"] for out in expected]
    figures, better = plain.summary(), boosted.summary()
    assert figures["entity_words"] == 32 and better["entity_wer"] < figures["entity_wer"]
    assert better["entity_recall"] > figures["entity_recall"]
    with pytest.raises(ValueError, match="no recording has entities"):
        evaluate(asr, clips, entities_as_phrases=True)


@pytest.mark.skipif(not hasattr(transformers, "ParakeetForTDT"), reason="this version of Transformers has no transducers")
def test_transducers():
    pipe = transformers.pipeline(TASK, **demo_transducer("ParakeetForTDT"))
    clips = list(read_recordings(MANIFEST))[:4]
    for settings in ({}, {"num_beams": 2, "strategy": "alsd"}):
        result = evaluate(pipe, clips, batch_size=2, **settings)
        assert hypotheses(result) == decoded(pipe, clips, **({"num_beams": 1} | settings)) and any(hypotheses(result))
        assert result.measured.startswith("prediction") and 0 < result.clock.decoder < result.clock.model


def test_encoder_decoders(tmp_path):
    pipe = transformers.pipeline(TASK, **whisper_parts(tmp_path / "tokenizer.json"), max_new_tokens=9, num_beams=1)
    noise = np.random.default_rng(0)
    audios = [noise.standard_normal(n).astype(np.float32) / 9 for n in (16000, 9000, 12000)]
    recordings = [Recording(str(i), audio, 16000, "a b") for i, audio in enumerate(audios)]
    result = evaluate(pipe, recordings, batch_size=2)
    assert hypotheses(result) == [pipe(audio.copy())["text"] for audio in audios] and any(hypotheses(result))
    assert all(utterance.score is None for utterance in result.utterances) and 0 < result.clock.decoder < result.clock.model
    # Its window is 1 s: longer audio comes in parts.
    long = Recording("long", np.concatenate([audios[0], audios[1]]), 16000, "a b")
    (utterance,) = evaluate(pipe, [long], batch_size=2).utterances
    parts = list(cut_where_quiet(long.audio, 1.0, 16000))
    assert utterance.hypothesis == " ".join(pipe(part.copy())["text"].strip() for part in parts)


def test_runaways_are_counted(tmp_path):
    """Transcripts that were cut at the limit of tokens, and those that say a phrase over and over though nobody did."""
    pipe = transformers.pipeline(TASK, **whisper_parts(tmp_path / "tokenizer.json"), max_new_tokens=16, num_beams=1)
    audio = np.random.default_rng(0).standard_normal(16000).astype(np.float32) / 9
    pipe.model.generation_config.suppress_tokens = [*range(28, 91)]  # it can't end
    result = evaluate(pipe, [Recording("noise", audio, 16000, "a b")])
    assert result.utterances[0].cut and result.runaways == result.summary()["runaways"] == 1
    result.save(tmp_path / "results.jsonl")
    assert read_results(tmp_path / "results.jsonl").runaways == 1

    said = [
        ("a b", "no " * 8),
        ("no " * 9, "no " * 9),
        ("a b", "a b " * 4),
        ("a b", "a b " * 3),
        ("a b", "no " * 7),
        ("a", None),
    ]
    utterances = tuple(Utterance(str(i), *texts) for i, texts in enumerate(said))
    assert [utterance.ran_away for utterance in utterances] == [True, False, True, False, False, False]


def test_audio_is_cut_where_it_is_quiet():
    audio = np.random.default_rng(0).standard_normal(40_000).astype(np.float32)
    audio[14_500:15_500] = 0
    parts = list(cut_where_quiet(audio, 1.0, 16000))
    assert np.array_equal(np.concatenate(parts), audio) and all(0 < len(part) <= 16000 for part in parts)
    assert 14_500 <= len(parts[0]) <= 15_500


def test_long_audio_is_chunked(asr, lm, clips):
    samples = np.concatenate([read_audio(clip.audio, 16000) for clip in clips[:6]])
    long = Recording("long", samples, 16000, " ".join(clip.text for clip in clips[:6]))
    result = evaluate(asr, [long, clips[0]], batch_size=2, chunk_seconds=6.0, lm=lm)
    expected = asr(samples.copy(), lm=lm, chunk_length_s=6.0, batch_size=2)["text"]
    assert hypotheses(result) == [expected, decoded(asr, clips[:1], lm=lm)[0]]
    assert result.utterances[0].decoder_seconds > 0 and result.summary()["wer"] < 60


def test_a_long_recording_that_is_refused(asr, clips, monkeypatch):
    """The rest of its chunks is left out, and the next one has none of its frames."""
    samples = np.concatenate([read_audio(clip.audio, 16000) for clip in clips[:6]])
    every = [Recording(str(i), samples[i:], 16000, "a") for i in range(3)]
    expected, heard = evaluate(asr, every, batch_size=1, chunk_seconds=4.0), Recogniser._heard_in_chunks

    def refuse(self, out, step, decoder):
        found = heard(self, out, step, decoder)
        if step.numbers[0] == 1:
            raise ValueError("odd")
        return found

    monkeypatch.setattr(Recogniser, "_heard_in_chunks", refuse)
    found = evaluate(asr, every, batch_size=1, chunk_seconds=4.0)
    assert [u.error for u in found.utterances] == [None, "1: odd", None] and found.summary()["unreadable"] == ["1"]
    assert hypotheses(found)[::2] == hypotheses(expected)[::2]


@pytest.mark.parametrize("chunk_seconds", [4.0, 40.0])
def test_a_recording_whose_features_are_refused(asr, clips, monkeypatch, chunk_seconds):
    samples = np.concatenate([read_audio(clip.audio, 16000) for clip in clips[:6]])
    every = [Recording(str(i), samples[i:], 16000, "a") for i in range(3)]
    options = {"batch_size": 3 if chunk_seconds > 4 else 1, "chunk_seconds": chunk_seconds}
    expected, preprocess = evaluate(asr, every, **options), type(asr).preprocess

    def refuse(self, audio, **more):
        for count, piece in enumerate(preprocess(self, audio, **more)):
            if len(audio) == len(samples) - 1 and count == more.get("chunk_length_s", 0) // 2:
                raise ValueError("odd")
            yield piece

    monkeypatch.setattr(type(asr), "preprocess", refuse)
    found = evaluate(asr, every, **options)
    assert [u.error for u in found.utterances] == [None, "1: odd", None]
    assert hypotheses(found)[::2] == hypotheses(expected)[::2]


def test_bad_recordings_are_told_of(asr, clips, tmp_path):
    samples = read_audio(clips[0].audio, 16000)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16000)
    soundfile.write(tmp_path / "short.wav", samples[:40], 16000)
    soundfile.write(tmp_path / "stereo.flac", np.stack([samples, samples], 1), 16000, subtype="PCM_24")
    soundfile.write(tmp_path / "a.mp3", samples, 16000)
    soundfile.write(tmp_path / "8k.wav", read_audio(clips[0].audio, 8000), 8000)
    whole = (DEMO / "clips" / "01.flac").read_bytes()
    (tmp_path / "corrupt.flac").write_bytes(whole[: len(whole) // 2] + bytes(4000) + whole[len(whole) // 2 + 4000 :])
    text = clips[0].text
    lines = [("stereo.flac", text), ("empty.wav", text), ("corrupt.flac", text), ("short.wav", ""), ("a.mp3", text),
             ("8k.wav", text), ("stereo.flac", None), ("gone.wav", text)]  # fmt: skip
    (tmp_path / "m.jsonl").write_text("\n".join(json.dumps({"audio": name, "text": said}) for name, said in lines))
    told = []
    result = evaluate(asr, tmp_path / "m.jsonl", batch_size=4, report=told.append)
    summary = result.summary()
    assert summary["unreadable"] == ["corrupt.flac", "gone.wav"] and len(told) == 2
    assert all("skipped" in line and name in line for line, name in zip(sorted(told), ("corrupt.flac", "gone.wav")))
    assert (summary["utterances"], summary["scored"], summary["without_audio"], summary["without_transcript"]) == (8, 5, 1, 1)
    stereo, empty, _, _, mp3, narrow, untold, _ = hypotheses(result)
    assert stereo == untold == decoded(asr, clips[:1], num_beams=1)[0] and empty == ""
    assert jiwer.wer(stereo, mp3) < 0.5 and jiwer.wer(text, narrow) < 1
    assert result.scores.words.utterances[1].deletions == len(text.split())


def test_nothing_to_compare_with(asr, clips, tmp_path):
    with pytest.raises(ValueError, match="none of 1 recordings has a transcript"):
        evaluate(asr, [Recording("a", clips[0].audio)])
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    with pytest.raises(ValueError, match=r"none of 1 recordings can be read: .*broken\.wav"):
        evaluate(asr, [Recording("a", tmp_path / "broken.wav", text="a")])
    with pytest.raises(ValueError, match="normalise should be"):
        evaluate(asr, clips, normalise="upside-down")
    with pytest.raises(ValueError, match="one for all recordings"):
        evaluate(asr, clips, lm_weight=[0.5] * 16)
    for name, value in (("batch_size", 0), ("chunk_seconds", float("nan"))):
        with pytest.raises(ValueError, match=name):
            evaluate(asr, clips, **{name: value})
    stock = transformers.AutomaticSpeechRecognitionPipeline(
        model=asr.model, tokenizer=asr.tokenizer, feature_extractor=asr.feature_extractor
    )
    with pytest.raises(ValueError, match="import hf_ngpulm before"):
        evaluate(stock, clips)


@pytest.mark.parametrize(("said", "warned"), [("включи свет", True), ("TURN IT ON", True), ("turn it on", False)])
def test_transcripts_of_another_script(asr, clips, said, warned):
    recordings = [Recording("a", clips[0].audio, text=said)]
    assert bool(evaluate(asr, recordings).warnings) == warned
    assert bool(evaluate(asr, recordings, normalise="lower").warnings) == (said == "включи свет")


def test_results_are_gone_on_with(asr, clips, tmp_path):
    output = tmp_path / "r.jsonl"
    whole = evaluate(asr, clips, batch_size=4, output=output)
    assert not (tmp_path / "r.jsonl.parts").exists()
    # As a kill leaves it: some batches, and half a line.
    parts = Parts(output, whole.settings)
    chosen = list(batches(clips, 4, 40.0))[1:3]
    marked = [{**record(whole, number), "hypothesis": "kept"} for batch in chosen for number in batch]
    parts.open()
    parts.write(marked)
    parts.close()
    with open(parts.path, "ab") as file:
        file.write(b'{"number": 0, "id": "clips/0')
    output.unlink()
    done = []
    again = evaluate(asr, clips, batch_size=4, output=output, progress=done.append)
    kept = {number for batch in chosen for number in batch}
    for i, (new, old) in enumerate(zip(hypotheses(again), hypotheses(whole))):
        assert new == ("kept" if i in kept else old)
    assert done[-1] == 8 and again.clock is None
    # All is there: nothing is done.
    assert hypotheses(evaluate(asr, clips, batch_size=4, output=output, progress=lambda _: pytest.fail())) == hypotheses(again)
    # Transcripts may be mended afterwards.
    mended = [Recording(clip.id, clip.audio, text="kept") for clip in clips]
    assert evaluate(asr, mended, batch_size=4, output=output).scores.words.hits == 8


def record(evaluation, number):
    utterance = evaluation.utterances[number]
    return {"number": number, "id": utterance.id, "hypothesis": utterance.hypothesis, "score": utterance.score,
            "audio_seconds": 1.0, "model_seconds": 1.0, "decoder_seconds": 0.5}  # fmt: skip


def test_results_of_other_settings_are_not_mixed(asr, lm, clips, tmp_path):
    output = tmp_path / "r.jsonl"
    evaluate(asr, clips[:2], output=output, lm=lm, lm_weight=0.5)
    with pytest.raises(SettingsMismatchError, match=r"r\.jsonl: .*lm_weight is 0\.5 there and 0\.6 here.*remove the file"):
        evaluate(asr, clips[:2], output=output, lm=lm, lm_weight=0.6)
    parts = Parts(tmp_path / "s.jsonl", {"lm_weight": 0.5}, rank=3)
    parts.open()
    parts.write([{"number": 0}])
    parts.close()
    with pytest.raises(SettingsMismatchError, match=r"00003\.jsonl.*remove the folder .*s\.jsonl\.parts"):
        evaluate(asr, clips[:2], output=tmp_path / "s.jsonl")
    assert list(parts.folder.iterdir()) == [parts.path]
    parts.path.write_text("not json\n")
    with pytest.raises(ValueError, match=r"00003\.jsonl: not a part"):
        evaluate(asr, clips[:2], output=tmp_path / "s.jsonl")
    (tmp_path / "t.jsonl").write_text("precious\n")
    with pytest.raises(ValueError, match=r"t\.jsonl: exists without"):
        evaluate(asr, clips[:2], output=tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_text() == "precious\n"


def test_batches_hold_each_once_the_longest_first():
    lengths = np.random.default_rng(0).integers(1, 90, size=BATCHES_PER_WINDOW * 4 + 5)
    recordings = [Recording(str(i), np.zeros(n), 1, "") for i, n in enumerate(lengths)]
    made = list(batches(recordings, 4, 60.0))
    assert sorted(number for batch in made for number in batch) == list(range(len(recordings)))
    for batch in made:
        assert len(batch) <= 4 and (len(batch) == 1 or max(lengths[batch]) <= 60)
        assert list(lengths[batch]) == sorted(lengths[batch], reverse=True)
    padding = sum(max(lengths[batch]) * len(batch) for batch in made) / lengths.sum()
    assert padding < 1.05


def test_loading_runs_ahead_but_not_far(asr, clips):
    recogniser = Recogniser(asr, {})
    started = []

    def chosen():
        for number in range(16):
            started.append(number)
            yield [number]

    before = threading.active_count()
    with closing(ahead(steps(clips, chosen(), recogniser, 1))) as loaded:
        first, end = next(loaded), next(loaded)
        time.sleep(0.5)
        assert first.numbers == (0,) and first.ends and end is None and 3 <= len(started) <= 7
    assert threading.active_count() == before  # also where the loop was left early
    broken = SimpleNamespace(sampling_rate=16000, is_long=lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(ahead(steps(clips, [[0]], broken, 1)))


@pytest.mark.parametrize(
    ("family", "given", "search"),
    [
        ("ctc", {}, {"num_beams": 4}),
        ("ctc", {"num_beams": 4, "beta": 1.0, "blank_threshold": 0.9}, {"num_beams": 4, "blank_threshold": 0.9, "beta": None}),
        ("ParakeetForTDT", {"num_beams": 3, "blank_scoring": "none"}, {"strategy": "alsd", "num_beams": 3}),
        ("whisper", {}, {"num_beams": 5}),
        ("whisper", {"num_beams": 2, "ilm_weight": 0.1}, {"num_beams": 2, "ilm_weight": None}),
    ],
)
def test_the_same_search_without_a_language_model(family, given, search, asr, clips, tmp_path):
    if family == "ctc":
        parts = {name: getattr(asr, name) for name in ("model", "tokenizer", "feature_extractor")}
    elif family == "whisper":
        parts = {**whisper_parts(tmp_path / "tokenizer.json"), "max_new_tokens": 5}
    elif not hasattr(transformers, family):
        pytest.skip(f"this version of Transformers has no {family}")
    else:
        parts = demo_transducer(family)
    lm = NGramLM.train(["play the next song"] * 9, tokenizer=parts["tokenizer"], order=2, allow_unknown=True)
    made = transformers.pipeline(TASK, **parts, lm=lm, phrases=["song"], **given)
    assert without_lm(made) == {"lm": None, "phrases": None, **search}
    told = evaluate(made, clips[:1], **without_lm(made)).settings  # it is taken
    assert str(told["num_beams"]) == str(search["num_beams"])


def test_settings_tell_the_number_of_beams_once(clips, tmp_path):
    """Also of those that the language model remembers for `generate`."""
    parts = whisper_parts(tmp_path / "tokenizer.json")
    lm = NGramLM.train(["play the next song"] * 9, tokenizer=parts["tokenizer"], order=2)
    lm.remember(TunedDecoding(ModelIdentity.of(parts["model"]), {"lm_weight": 0.5, "num_beams": 2}))
    made = transformers.pipeline(TASK, **parts, max_new_tokens=5, lm=lm)
    settings = evaluate(made, clips[:1]).settings
    assert {name: value for name, value in settings.items() if "beams" in name} == {"num_beams": 2}
