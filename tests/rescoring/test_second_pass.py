"""Hypotheses ranked anew, in decoders, pipelines, streams, evaluation and tuning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.causal_lms import causal_lm, letters_tokenizer
from transformers import pipeline

import hf_ngpulm
from hf_ngpulm import CTCDecoder, Rescorer, StreamingDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.generation import transducer_generate
from hf_ngpulm.pipelines.loading import load_pipeline
from hf_ngpulm.sound.files import read_audio

RESCORER = Rescorer(causal_lm(), letters_tokenizer())
CLIPS = [read_audio(bundled(f"examples/speech/harbour/clips/{name}.flac"), 16000) for name in ("01", "02")]


def model_of(family):
    return pipeline("automatic-speech-recognition", model=str(bundled(f"examples/models/{family}")), dtype=torch.float32)


@pytest.fixture(scope="module")
def pipelines():
    return {family: model_of(family) for family in ("ctc", "tdt")}


@pytest.fixture(scope="module")
def logits(pipelines):
    asr = pipelines["ctc"]
    rows = [*asr.frames(CLIPS)]
    return torch.stack([row[: min(map(len, rows))] for row in rows]), asr.tokenizer


def expected(hypotheses, weight, word_bonus, divided=False):
    """The definition: total scores by hand, one text at a time."""
    found = []
    for each in hypotheses:
        neural = RESCORER.score(each.text)
        score = each.score + weight * neural + word_bonus * len(each.text.split())
        found.append((score / (len(each.token_ids) + 1 if divided else 1), score, neural, each))
    found.sort(key=lambda row: -row[0])
    return [replace(each, score=pytest.approx(score), rescorer_score=pytest.approx(neural)) for _, score, neural, each in found]


@pytest.mark.parametrize("weight, word_bonus", [(0.0, 0.0), (0.7, 0.0), (0.7, 3.0)])
def test_hypotheses_are_ranked_by_the_sum(logits, weight, word_bonus):
    frames, tokenizer = logits
    decoder = CTCDecoder(tokenizer, num_beams=8, num_return_sequences=8)
    n_best = decoder(frames)
    found = decoder.rescore(n_best, RESCORER, weight, word_bonus)
    assert found == [expected(of_row, weight, word_bonus) for of_row in n_best]
    assert decoder.rescore(n_best[0], RESCORER, weight, word_bonus) == found[0]
    if not weight:
        assert [[each.text for each in of_row] for of_row in found] == [[each.text for each in of_row] for of_row in n_best]
    else:
        assert [of_row[0].text for of_row in found] != [of_row[0].text for of_row in n_best]


def test_the_option_equals_rescoring(logits):
    frames, tokenizer = logits
    decoder = CTCDecoder(tokenizer, num_beams=8, num_return_sequences=8)
    rescored = decoder.rescore(decoder(frames), RESCORER, 0.7, 1.0)
    options = {"rescorer": RESCORER, "rescorer_weight": 0.7, "word_bonus": 1.0}
    for most in (1, 3, 8):
        ours = CTCDecoder(tokenizer, num_beams="auto", num_return_sequences=most, **options)
        assert ours(frames) == [of_row[:most] for of_row in rescored]
    assert CTCDecoder(tokenizer, **options).options.num_beams == 8
    ours = CTCDecoder(tokenizer, **options)
    blocks = ours.stream(len(frames))
    for block in frames.split(10, 1):
        blocks.add(block)
    assert [of_row[0].text for of_row in blocks.hypotheses()] == [of_row[0].text for of_row in rescored]
    streams = StreamingDecoder(ours, max_streams=1)
    sid = streams.open()
    streams.step({sid: frames[0]})
    assert streams.close(sid)[0].text == rescored[0][0].text


def test_weights_for_each_row(logits):
    frames, tokenizer = logits
    decoder = CTCDecoder(tokenizer, num_beams=8, rescorer=RESCORER)
    of_rows = decoder.with_weights(rescorer_weight=torch.tensor([0.0, 0.7]), word_bonus=torch.tensor([0.0, 2.0]))
    texts = [row[0].text for row in of_rows(frames)]
    assert texts[0] == CTCDecoder(tokenizer, num_beams=8)(frames)[0][0].text
    assert texts[1] == decoder.with_weights(rescorer_weight=0.7, word_bonus=2.0)(frames)[1][0].text
    with pytest.raises(ValueError, match="weight has 2 values, one per row, but there are 1 rows"):
        of_rows(frames[:1])


def test_history_reaches_the_rescorer(logits):
    frames, tokenizer = logits
    decoder = CTCDecoder(tokenizer, num_beams=8, num_return_sequences=8)
    first = decoder(frames)[0]
    found = decoder.rescore(first, RESCORER, 0.5, history=["tell them"])
    assert {each.text: each.rescorer_score for each in found} == {
        each.text: pytest.approx(RESCORER.score(each.text, ["tell them"])) for each in first
    }


@pytest.mark.parametrize("normalised", [True, False])
def test_transducers(pipelines, normalised):
    asr = pipelines["tdt"]
    frames = torch.nn.utils.rnn.pad_sequence([*asr.frames(CLIPS)], batch_first=True)
    options = {"num_beams": 8, "length_normalization": normalised}
    n_best = TransducerDecoder(asr.model, asr.tokenizer, **options, num_return_sequences=8).decode(frames)
    ours = TransducerDecoder(asr.model, asr.tokenizer, **options, rescorer=RESCORER, rescorer_weight=0.7)
    assert ours.decode(frames) == [expected(of_row, 0.7, 0.0, normalised)[:1] for of_row in n_best]
    for path, (best,) in zip(ours.paths(frames), ours.decode(frames)):
        assert [token for token in path[0].steps.ids.tolist() if token != ours.blank_id] == best.token_ids
        assert path[0].scores[0] == pytest.approx(best.score)


@pytest.mark.parametrize("more", [{}, {"rescorer_every": "word"}])
def test_generate_of_transducers(pipelines, more):
    asr = pipelines["tdt"]
    features = asr.feature_extractor(CLIPS, sampling_rate=16000, return_tensors="pt")
    settings = {"num_beams": 4, "rescorer": RESCORER, "rescorer_weight": 0.7, "word_bonus": 1.0, **more}
    found = asr.model.generate(**features, custom_generate=transducer_generate, processor=asr.tokenizer, **settings).sequences
    decoder = TransducerDecoder(asr.model, asr.tokenizer, **settings)
    wanted = [row[0].token_ids for row in decoder(features["input_features"], features["attention_mask"])]
    blank = asr.model.config.blank_token_id
    special = {blank, asr.model.generation_config.pad_token_id}
    assert [[token for token in row if token not in special] for row in found.tolist()] == wanted
    with pytest.raises(ValueError, match="pass the tokenizer or processor too"):
        asr.model.generate(**features, custom_generate=transducer_generate, **settings)


@pytest.mark.parametrize("family", ["ctc", "tdt"])
def test_pipelines(family, pipelines, tmp_path):
    RESCORER.model.save_pretrained(tmp_path)
    RESCORER.tokenizer.save_pretrained(tmp_path)
    asr = pipelines[family]
    parts = {"model": asr.model, "tokenizer": asr.tokenizer, "feature_extractor": asr.feature_extractor}
    settings = {"rescorer": str(tmp_path), "rescorer_weight": 0.7, "word_bonus": 1.0}
    ours = pipeline("automatic-speech-recognition", **parts, **settings)
    stock = [result["text"] for result in asr(CLIPS)]  # in the precision of `ours`, which has the same model
    with_beams = asr(CLIPS, num_beams=8, num_return_sequences=8)
    assert isinstance(ours._ngram_settings["rescorer"], Rescorer)
    for result, found in zip(with_beams, ours(CLIPS, batch_size=2, num_return_sequences=8)):
        texts = [each["text"] for each in result["hypotheses"]]
        assert sorted(texts) == sorted(each["text"] for each in found["hypotheses"])
        assert texts != [each["text"] for each in found["hypotheses"]]
        assert found["text"] == found["hypotheses"][0]["text"]
    assert [result["text"] for result in ours(CLIPS, rescorer=None)] == stock
    for wrong, message in (
        ({"rescorer_weight": 0.5}, "rescorer_weight given without"),
        ({"rescorer": RESCORER, "num_beams": 1}, "one hypothesis only to choose from"),
        ({"rescorer": 7}, "rescorer should be a hf_ngpulm.Rescorer"),
    ):
        with pytest.raises(ValueError, match=message):
            asr(CLIPS[0], **wrong)


def test_evaluation_and_tuning(logits, tmp_path):
    from hf_ngpulm.evaluation import tune_weights

    frames, tokenizer = logits
    texts = ["tell the harbour master we will be twenty minutes late", "keep the green buoy on the starboard side"]
    dataset = [{"text": text, "logits": row} for text, row in zip(texts, frames)]
    decoder = CTCDecoder(tokenizer, num_beams=8, rescorer=RESCORER)
    result = tune_weights(decoder, dataset, rescorer_weights="0,0.5", word_bonuses="0,2", refine=0, extend=False)
    assert [set(point.setting) for point in result.points] == [{"rescorer_weight", "word_bonus"}] * 4
    from hf_ngpulm.evaluation import word_errors

    for point in result.points:
        heard = [row[0].text for row in decoder.with_weights(**point.setting)(frames)]
        assert point.counts["wer"].errors == word_errors(texts, heard).errors
    assert result.baseline.setting == dict.fromkeys(["beta", "rescorer_weight", "word_bonus"], 0.0)
    with pytest.raises(ValueError, match="rescorer_weight can't be tuned: there is no rescorer"):
        tune_weights(CTCDecoder(tokenizer, num_beams=8), dataset, rescorer_weights="0,1")


def test_tuning_encoder_decoders():
    from hf_ngpulm.evaluation import read_recordings, tune_weights

    model = str(bundled("examples/models/canary"))
    recordings = read_recordings(str(bundled("examples/speech/harbour/clips.jsonl")), limit=2)
    settings = {"rescorer_weights": "0,1", "word_bonuses": "0", "refine": 0, "extend": False}
    for every in (None, "word"):
        asr = load_pipeline(model, rescorer=RESCORER, rescorer_every=every, num_beams=4)
        result = tune_weights(asr, recordings, **settings)
        points = {point.setting["rescorer_weight"]: point.counts["wer"].errors for point in result.points}
        assert set(points) == {0.0, 1.0} and points[0.0] == result.baseline.counts["wer"].errors


def test_rescored_twice(logits):
    frames, tokenizer = logits
    decoder = CTCDecoder(tokenizer, rescorer=RESCORER)
    with pytest.raises(ValueError, match="have been rescored already"):
        decoder.rescore(decoder(frames), RESCORER, 0.5)
    with pytest.raises(ValueError, match="word_bonus given without rescorer="):
        CTCDecoder(tokenizer, num_beams=8, word_bonus=1.0)
    assert hf_ngpulm.Hypothesis("", [], 0.0, 0.0, 0.0, []).rescorer_score is None
    assert np.isfinite(decoder(frames)[0][0].rescorer_score)


def test_encoder_decoders():
    asr = model_of("canary")
    first = [result["text"] for result in asr(CLIPS, num_beams=4)]
    rows = [asr.model.generate(
        **asr.feature_extractor([clip], sampling_rate=16000, return_tensors="pt"), num_beams=4, num_return_sequences=4,
        return_dict_in_generate=True, output_scores=True, max_new_tokens=64,
    ) for clip in CLIPS]  # fmt: skip
    for weight, bonus in ((0.0, 0.0), (1.0, 0.0), (1.0, 5.0)):
        wanted = []
        for row in rows:
            texts = [text.strip() for text in asr.tokenizer.batch_decode(row.sequences, skip_special_tokens=True)]
            sizes = [len(asr.tokenizer(text, add_special_tokens=False)["input_ids"]) + 1 for text in texts]
            added = [weight * RESCORER.score(text) + bonus * len(text.split()) for text in texts]
            ranks = [score + each / size for score, each, size in zip(row.sequences_scores.tolist(), added, sizes)]
            wanted.append(texts[int(np.argmax(ranks))])
        settings = {"rescorer": RESCORER, "rescorer_weight": weight, "word_bonus": bonus, "max_new_tokens": 64}
        found = [result["text"] for result in asr(CLIPS, num_beams=4, **settings)]
        assert found == wanted
        assert (found == first) == (weight == 0)
    with pytest.raises(ValueError, match="one hypothesis only to choose from"):
        asr(CLIPS[0], num_beams=1, rescorer=RESCORER)
    with pytest.raises(ValueError, match="word_bonus given without rescorer="):
        asr(CLIPS[0], word_bonus=1.0)


@pytest.mark.parametrize("family", ["ctc", "canary"])
def test_evaluation_without_a_rescorer_is_the_baseline(family):
    from hf_ngpulm.evaluation import evaluate, read_recordings
    from hf_ngpulm.evaluation.recognition import without_lm

    recordings = read_recordings(str(bundled("examples/speech/harbour/clips.jsonl")), limit=3)
    asr = load_pipeline(str(bundled(f"examples/models/{family}")), rescorer=RESCORER, rescorer_weight=1.0, num_beams=4)
    settings = ({}, {"rescorer_weight": 0.0}, without_lm(asr))
    rescored, first, baseline = (
        [each.hypothesis for each in evaluate(asr, recordings, **more).utterances] for more in settings
    )
    assert rescored != first == baseline
