"""Confidences of encoder-decoders' words, against the logits of `generate` before any processor, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from speech_models import whisper_parts
from transformers import pipeline

import hf_ngpulm
from hf_ngpulm import Grammar, NGramLM, NGramLogitsProcessor
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.generation.forced import forced_scores
from hf_ngpulm.generation.grammars import Beginning
from hf_ngpulm.generation.transcripts import no_timestamps_of, positions_of
from hf_ngpulm.search.confidence import Calibration, frame_confidence
from hf_ngpulm.sound.files import read_audio
from hf_ngpulm.text.words import WordSplitter

TASK = "automatic-speech-recognition"


@pytest.fixture(scope="module", params=["canary", "whisper"])
def asr(request, tmp_path_factory):
    if request.param == "canary":
        return pipeline(TASK, model=str(bundled("examples/models/canary")), dtype=torch.float32)
    parts = whisper_parts(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    return pipeline(TASK, **parts, max_new_tokens=9)


@pytest.fixture(scope="module")
def clips(asr):
    if asr.type == "seq2seq_whisper":
        generator = np.random.default_rng(0)
        return [generator.standard_normal(length).astype(np.float32) / 9 for length in (16000, 9000, 12000)]
    return [read_audio(bundled("examples/speech/harbour") / "clips" / f"0{n}.flac", 16000) for n in range(3)]


def expected(asr, audio, measure, *processors):
    """The words of greedy search in one recording, with the measure of each step's raw logits, the lowest of a word."""
    given = asr.feature_extractor(audio, sampling_rate=16000, return_tensors="pt")
    limits = {} if asr.type != "seq2seq_whisper" else {"max_new_tokens": 9, "return_dict_in_generate": True}
    settings = {"num_beams": 1, "output_logits": True, "return_dict_in_generate": True, **limits}
    # Ours change scores in place, so that `output_logits` would have them.
    whole = [lambda ids, scores: scores.clone(), Beginning(no_timestamps_of(asr.model))]
    out = asr.model.generate(**given, **settings, logits_processor=[*whole, *processors])
    steps = torch.cat([step[:1] for step in out.logits]).float()
    chosen = out.sequences[0, -len(steps) :]
    sure = steps.softmax(-1).gather(1, chosen[:, None])[:, 0]
    sure = sure if measure == "max_prob" else frame_confidence(steps[None], measure)[0]
    splitter = WordSplitter(asr.tokenizer)
    text = [(token, value) for token, value in zip(chosen.tolist(), sure.tolist()) if token not in splitter.special]
    words = splitter.words([token for token, _ in text])
    return [(word, min(value for _, value in text[first:last])) for word, first, last in words]


def shown(words):
    return [(word["text"], word["confidence"]) for word in words]


def close(found, wanted):
    assert [text for text, _ in found] == [text for text, _ in wanted] and wanted
    assert [sure for _, sure in found] == pytest.approx([sure for _, sure in wanted], abs=1e-4)


@pytest.mark.parametrize("measure", ["max_prob", "gibbs", "renyi"])
def test_the_models_own_probabilities_of_what_was_chosen(asr, clips, measure):
    lm = NGramLM.train(["tell the harbour master", "jazz quickly vexed him"] * 5, tokenizer=asr.tokenizer, order=3)
    processor = NGramLogitsProcessor(lm, 2.0, model=asr.model, tokenizer=asr.tokenizer)
    common = {"num_beams": 1, "batch_size": 2, "confidence": measure}
    plain = asr([clip.copy() for clip in clips], **common)
    guided = asr([clip.copy() for clip in clips], **common, lm=lm, lm_weight=2.0, lm_guard="off")
    for clip, one, other in zip(clips, plain, guided):
        close(shown(one["words"]), expected(asr, clip, measure))
        close(shown(other["words"]), expected(asr, clip, measure, processor))
        assert "".join(word["text"] for word in one["words"]) == "".join(one["text"].split())
    assert [one["text"] for one in plain] != [other["text"] for other in guided]
    calibration = Calibration(measure, 0.5, 1.0)
    told = asr(clips[0].copy(), num_beams=1, confidence=calibration)["words"]
    close(shown(told), [(text, calibration.of(sure)) for text, sure in shown(plain[0]["words"])])


def test_beams_strategy_and_looks(asr, clips):
    common = {"num_beams": 3, "confidence": "max_prob"}
    alone = asr([clip.copy() for clip in clips], **common)
    batched = asr([clip.copy() for clip in clips], **common, batch_size=3)
    for one, other in zip(alone, batched):
        close(shown(other["words"]), shown(one["words"]))
    given = asr.feature_extractor(clips[0], sampling_rate=16000, return_tensors="pt")
    limits = {} if asr.type != "seq2seq_whisper" else {"max_new_tokens": 9}
    words = []
    settings = {"custom_generate": seq2seq_generate, "processor": asr.tokenizer, "num_beams": 3, **limits}
    asr.model.generate(**given, **settings, confidence="max_prob", words=words)
    close([(word.text, word.confidence) for word in words[0]], shown(alone[0]["words"]))
    assert all(word.start is None for word in words[0])
    looked = asr(clips[0].copy(), **common, phrases=["zebra"], phrase_weight=1.0, false_alarms_per_hour=1.0)
    assert "".join(word["text"] for word in looked["words"]) == "".join(looked["text"].split())
    close(shown(looked["words"]), shown(alone[0]["words"]))
    with pytest.raises(ValueError, match=r"words.*pass confidence="):
        asr.model.generate(**given, **settings, words=[])
    with pytest.raises(ValueError, match="confidence= takes an encoder-decoder, and processor="):
        asr.model.generate(**given, **limits, custom_generate=seq2seq_generate, confidence="max_prob", words=[])


def test_chunks_have_them_beside_their_times(asr, clips):
    if asr.type == "seq2seq_whisper":
        with pytest.raises(ValueError, match="fit into one window"):
            asr(clips[0].copy(), confidence="max_prob", return_timestamps=True)
        return
    told = asr(clips[0].copy(), confidence="max_prob", return_timestamps="word", num_beams=1)
    close(shown(told["chunks"]), expected(asr, clips[0], "max_prob"))
    assert "confidence" not in asr(clips[0].copy(), return_timestamps="word", num_beams=1)["chunks"][0]


def test_what_cannot_be_is_refused(asr, clips):
    for settings, why in (
        ({"confidence": "best"}, "there is no file 'best'"), ({"confidence": 3}, "confidence should be"),
        ({"confidence": "max_prob", "chunk_length_s": 1}, "fit into one window"),
        ({"confidence": "max_prob", "grammar": Grammar.from_phrases(["a"])}, "can't be combined with grammar="),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            asr(clips[0].copy(), **settings)
    silence = asr(np.zeros(16000, dtype=np.float32), confidence="max_prob")
    assert len(silence["words"]) == len(silence["text"].split())


def test_a_models_own_pipeline_keeps_its_setting():
    folder = str(bundled("examples/models/canary"))
    sure = pipeline(TASK, model=folder, dtype=torch.float32, confidence="max_prob")
    assert "words" in sure(hf_ngpulm.demo_recording()) and "words" not in sure(hf_ngpulm.demo_recording(), confidence=None)


def test_each_recording_is_scored_after_its_own_prompt(asr, clips):
    given = asr.feature_extractor(clips, sampling_rate=16000, return_tensors="pt", padding=True, return_attention_mask=True)
    name = asr.model.main_input_name
    mask = given["attention_mask"] if asr.type != "seq2seq_whisper" else None
    outputs = asr.model.get_encoder()(given[name], attention_mask=mask)
    prompts, transcripts = [[1, 2], [3, 2], [1, 4]], [[5, 6, 7], [5], [8, 9]]
    together = forced_scores(asr.model, outputs, mask, prompts, transcripts)
    for row in range(3):
        some = slice(row, row + 1)
        one = type(outputs)(**{key: value[some] for key, value in outputs.items() if isinstance(value, torch.Tensor)})
        alone = forced_scores(asr.model, one, None if mask is None else mask[some], prompts[some], transcripts[some])
        assert together[row] == pytest.approx(alone[0], abs=1e-3)
    assert forced_scores(asr.model, outputs, mask, [prompts[0]] * 3, transcripts)[1:] != pytest.approx(together[1:], abs=0.1)
    rows = [2, 0, 1, 1] * 5  # more than are scored at a time
    several = forced_scores(asr.model, outputs, mask, prompts, [transcripts[row] for row in rows], rows)
    assert several == pytest.approx([together[row] for row in rows], abs=1e-3)
    places = positions_of(asr.model)
    longest = [[5] * (places - 1), [5] * places, [6]]
    scores = forced_scores(asr.model, outputs, mask, prompts, longest)
    assert scores[0] > -np.inf and scores[1] == -np.inf and scores[2] > -np.inf
    beginning = Beginning(None)
    beginning(torch.tensor(prompts).repeat_interleave(2, dim=0), torch.zeros(6, 4))
    assert beginning.prompts_of(3) == prompts
