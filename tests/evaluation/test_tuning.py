"""tune_weights: what it finds is what separate runs with each setting give."""

from __future__ import annotations

import json
import math

import jiwer
import numpy as np
import pytest
import soundfile
import torch
from speech_models import whisper_parts
from tiny_transducers import FAMILIES, demo_transducer
from transformers import pipeline

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, TokenizerMismatchError, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.config.tuned import ModelIdentity
from hf_ngpulm.evaluation import Recording, character_errors, tune_weights
from hf_ngpulm.evaluation.tuning.dataset import KeptTensors

DEMO = bundled("examples/speech/harbour")
TASK = "automatic-speech-recognition"
FEW = {"refine": 0, "extend": False}


@pytest.fixture(scope="module")
def clips():
    """Six clips, two with an entity."""
    lines = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()][:6]
    entities = [["old lighthouse"], ["harbour master"], [], [], [], []]
    return [
        {"audio": soundfile.read(DEMO / line["audio"], dtype="float32")[0], "text": line["text"], "entities": phrases}
        for line, phrases in zip(lines, entities)
    ]


@pytest.fixture(scope="module")
def asr():
    """A trained CTC model, with a beam."""
    lm = str(DEMO / "lm.arpa.gz")
    return pipeline(TASK, model=str(bundled("examples/models/ctc")), dtype=torch.float32, lm=lm, lm_weight=0.5, num_beams=4)


@pytest.fixture(scope="module")
def frames(asr, clips):
    return list(asr.frames([clip["audio"].copy() for clip in clips]))


@pytest.fixture(scope="module")
def outputs(frames, clips):
    """The same as a dataset."""
    return [{"logits": logits, **{name: clip[name] for name in ("text", "entities")}} for logits, clip in zip(frames, clips)]


@pytest.fixture(scope="module")
def lm(asr):
    return NGramLM.from_arpa(DEMO / "lm.arpa.gz", asr.tokenizer)


def references(clips):
    return [clip["text"] for clip in clips]


def heard(asr, clips, **settings):
    return [asr(clip["audio"].copy(), **settings)["text"] for clip in clips]


def counts(clips, texts):
    """Errors as jiwer counts them."""
    found = jiwer.process_words(references(clips), texts)
    return found.substitutions, found.deletions, found.insertions


def counted(point):
    return point.words.substitutions, point.words.deletions, point.words.insertions


def test_a_ctc_pipeline_as_in_separate_runs(asr, clips):
    result = tune_weights(asr, clips, lm_weights="0:1.6:0.8", betas=[0.0, 3.0], **FEW)
    settings = [(weight, beta) for weight in (0.0, 0.8, 1.6) for beta in (0.0, 3.0)]
    assert [(point.setting["lm_weight"], point.setting["beta"]) for point in result.points] == settings
    for point in result.points:
        texts = heard(asr, clips, **point.setting)
        assert counted(point) == counts(clips, texts)
        assert point.cer == jiwer.cer(references(clips), [" ".join(text.split()) for text in texts])
    assert counted(result.baseline) == counts(clips, heard(asr, clips, lm=None))
    fewest = min(result.points, key=lambda point: (point.wer, point.setting["lm_weight"], point.setting["beta"]))
    assert result.best == fewest and result.best.wer < result.baseline.wer
    assert result.interval.low <= result.best.wer == result.interval.rate <= result.interval.high
    assert result.search == {"num_beams": 4} and result.fixed == {} and result.utterances == 6
    by_cer = tune_weights(asr, clips, lm_weights=[0.0, 0.8, 1.6], by="cer", **FEW)
    assert by_cer.best.cer == by_cer.interval.rate == min(point.cer for point in by_cer.points)


def test_audio_of_any_kind_and_kept_outputs_give_the_same(asr, clips, outputs, lm, tmp_path):
    expected = tune_weights(asr, clips, lm_weights=[0.0, 0.9], **FEW).points
    soundfile.write(tmp_path / "0.flac", clips[0]["audio"], 16000)
    others = [
        {"audio": str(tmp_path / "0.flac")},
        {"audio": {"array": clips[1]["audio"].tolist(), "sampling_rate": 16000}},
        {"audio": torch.tensor(clips[2]["audio"]), "sampling_rate": 16000},
        {"audio": {"bytes": (DEMO / "clips" / "03.flac").read_bytes(), "path": "nowhere"}},
        {"audio": clips[4]["audio"]},
    ]
    recordings: list = [{**clip, **other} for clip, other in zip(clips, others)]
    recordings.append(Recording("5", clips[5]["audio"], 16000, clips[5]["text"]))
    given = {"lm_weights": [0.0, 0.9], **FEW}
    decoder = CTCDecoder(asr.tokenizer, lm, 0.5, num_beams=4)
    for found in (
        tune_weights(asr, (recording for recording in recordings), **given),
        tune_weights(decoder, outputs, **given),
        tune_weights(decoder, outputs, memory=1, folder=tmp_path, **given),  # all on disk
        tune_weights(asr, clips, memory="100k", **given),  # some
    ):
        assert [point.setting for point in found.points] == [point.setting for point in expected]
        assert [counted(point) for point in found.points] == [counted(point) for point in expected]
    assert list(tmp_path.iterdir()) == [tmp_path / "0.flac"]


def test_greedy_ctc_with_phrases_of_each_recording(asr, clips, outputs, lm):
    phrases = [clip["entities"] or None for clip in clips]
    decoder = CTCDecoder(asr.tokenizer, lm, 0.5, phrases, 1.0, num_beams=1)
    result = tune_weights(
        decoder, outputs, lm_weights=[0.3, 0.9], phrase_weights=[0.0, 2.0], by="entity_wer", model=asr.model, **FEW
    )
    for point in result.points:
        weights = point.setting["lm_weight"], point.setting["phrase_weight"]
        made = CTCDecoder(asr.tokenizer, lm, weights[0], phrases, weights[1], num_beams=1)
        texts = [made.select([number])(item["logits"][None])[0][0].text for number, item in enumerate(outputs)]  # one by one
        assert counted(point) == counts(clips, texts)
    assert result.best.entity_wer == min(point.entity_wer for point in result.points)
    assert result.interval.rate == result.best.entity_wer
    tuned = result.tuned
    assert tuned.settings == {**result.best.setting, "num_beams": 1} and tuned.model == ModelIdentity.of(asr.model)
    with pytest.raises(ValueError, match="phrases lists 6 values, one per utterance, but there are 5"):
        tune_weights(decoder, outputs[:5], lm_weights=[0.1], **FEW)


@pytest.mark.skipif("ParakeetForTDT" not in dict(FAMILIES), reason="this version of Transformers has no TDT")
def test_graphs_as_in_separate_runs(asr, clips, outputs, lm):
    """In a pipeline and alone, phrases of each recording among them; and what was found is remembered for graphs."""
    phrases = [clip["entities"] or None for clip in clips]
    grids = {"lm_weights": [0.0, 1.0], "phrase_weights": [0.0, 2.0], **FEW}
    parts = {"model": asr.model, "tokenizer": asr.tokenizer, "feature_extractor": asr.feature_extractor}
    graph = pipeline(TASK, **parts, lm=lm, lm_weight=0.5, strategy="graph", num_beams=8, beta=2.0, phrases=phrases)
    result = tune_weights(graph, outputs, **grids)
    alone = GraphDecoder(asr.tokenizer, lm, 0.5, max_active=8, beta=2.0, phrases=phrases)
    again = tune_weights(alone, outputs, model=asr.model, **grids)
    assert again.points == result.points and again.tuned == result.tuned
    for point in result.points:
        weight, discount = point.setting["lm_weight"], point.setting["phrase_weight"]
        one = GraphDecoder(asr.tokenizer, lm, weight, max_active=8, beta=2.0, discount=discount)
        texts = [one(clip["logits"][None], None, some)[0][0].text for clip, some in zip(outputs, phrases)]
        assert counted(point) == counts(clips, texts)
    assert result.tuned.settings == {**result.best.setting, "strategy": "graph", "num_beams": 8, "beta": 2.0}
    given = GraphDecoder(asr.tokenizer, lm, 0.5, beam_threshold=9.0, score_eos=False)
    found = tune_weights(given, outputs, lm_weights=[0.5, 1.0], model=asr.model, **FEW).tuned.settings
    assert found.items() >= {"beam_threshold": 9.0, "score_eos": False, "num_beams": 64}.items()


@pytest.mark.parametrize("search", [{"num_beams": 1}, {"num_beams": 3}])
def test_transducers_as_in_separate_runs(search, clips):
    parts = demo_transducer("ParakeetForTDT")
    lm = NGramLM.from_arpa(DEMO / "lm.arpa.gz", parts["tokenizer"])
    asr = pipeline(TASK, **parts, lm=lm, lm_weight=2.0, ilm_weight=0.2, **search)
    few = [{**clip, "audio": clip["audio"][:16000]} for clip in clips[:3]]
    result = tune_weights(asr, few, lm_weights=[0.0, 3.0], ilm_weights=[0.0, 0.4], **FEW)
    rows = list(asr.frames([clip["audio"].copy() for clip in few]))
    for point in result.points:
        assert counted(point) == counts(few, heard(asr, few, **point.setting))
    assert result.search == {"strategy": "greedy" if search["num_beams"] == 1 else "alsd", **search}
    assert result.tuned.settings == {**result.best.setting, **result.search}
    decoder = TransducerDecoder(parts["model"], parts["tokenizer"], lm, 2.0, ilm_weight=0.2, **search)
    given = [{"encoder_hidden_states": frames, "text": clip["text"]} for frames, clip in zip(rows, few)]
    alone = tune_weights(decoder, given, lm_weights=[0.0, 3.0], ilm_weights=[0.0, 0.4], **FEW)
    assert [counted(point) for point in alone.points] == [counted(point) for point in result.points]
    assert alone.tuned == result.tuned
    assert tune_weights(decoder, given, lm_weights=[0.0, 3.0], **FEW).fixed == {"ilm_weight": 0.2}
    for ilm_weight, fixed in ((0.0, {"ilm_weight": 0.0}), (None, {})):  # 0 would else be read as the default
        decoder = TransducerDecoder(parts["model"], parts["tokenizer"], lm, 2.0, ilm_weight=ilm_weight, **search)
        assert tune_weights(decoder, given, lm_weights=[0.0, 3.0], **FEW).fixed == fixed


def test_what_is_subtracted(asr, outputs, lm, whisper):
    """The weights of internal LMs, row by row, and of a source's model."""
    words = ["the harbour and the light", "turn the light off", "what's the weather"] * 5
    source = NGramLM.train(words, tokenizer=asr.tokenizer, order=2)
    decoder = CTCDecoder(asr.tokenizer, lm, 0.6, num_beams=4, source_lm=source, model=asr.model)
    result = tune_weights(decoder, outputs, lm_weights=[0.3, 0.9], source_weights=[0.0, 0.4], model=asr.model, **FEW)
    for point in result.points:
        texts = [decoder.with_weights(**point.setting)(each["logits"][None])[0][0].text for each in outputs]
        assert counted(point) == counts(outputs, texts)
    lm = NGramLM.from_arpa(DEMO / "lm.arpa.gz", asr.tokenizer)
    lm.remember(result.tuned)
    # What was tuned with a source's model holds with one, and not without.
    for given, source_weight in (({"source_lm": source}, result.best.setting["source_weight"]), ({}, None)):
        found = CTCDecoder(asr.tokenizer, lm, num_beams=4, model=asr.model, **given)
        assert found.options.source_weight == source_weight
        assert found.fusion.weight == (result.best.setting["lm_weight"] if given else 0.8)

    # So does what was tuned with half of the LM's weight, which nobody had to say.
    result = tune_weights(decoder, outputs, lm_weights=[0.3, 0.9], model=asr.model, **FEW)
    assert result.tuned.settings["source_weight"] == 0.5 * result.best.setting["lm_weight"] and not result.tuned.suits({})

    generator = np.random.default_rng(0)
    lm, source = (NGramLM.train(words[part::2], tokenizer=whisper["tokenizer"], order=3) for part in (0, 1))
    clips = [{"audio": generator.standard_normal(9000).astype(np.float32) / 9, "text": text} for text in words[:3]]
    decodes = pipeline(TASK, **whisper, max_new_tokens=9, lm=lm, lm_weight=0.9, source_lm=source, num_beams=2)
    weights = {"lm_weights": [0.0, 0.9], "ilm_weights": [0.0, 0.5], "source_weights": [0.0, 0.5]}
    result = tune_weights(decodes, clips, **weights, **FEW)
    for point in result.points:
        assert counted(point) == counts(clips, heard(decodes, clips, **point.setting))
    assert len({point.cer for point in result.points}) > 1


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return whisper_parts(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, *({"num_beams": 2} | more for more in ({"chunk_length_s": 0.8}, {"language": None}))])
def test_attention_decoders_as_in_separate_runs(settings, whisper):
    generator = np.random.default_rng(0)
    texts = ["play the next song", "turn the light off", "what's the weather"] * 5
    lm = NGramLM.train(texts, tokenizer=whisper["tokenizer"], order=3)
    # The last one is longer than the model's window.
    audios = [generator.standard_normal(length).astype(np.float32) / 9 for length in (16000, 9000, 20000)]
    clips = [{"audio": audio, "text": text} for audio, text in zip(audios, texts)]
    asr = pipeline(
        TASK, **whisper, max_new_tokens=9, lm=lm, lm_weight=0.9, phrases=["light"], return_timestamps=True, **settings
    )
    encoder = whisper["model"].get_encoder()
    asked: list[int] = []
    encoded: list[int] = []
    own = encoder.forward

    def rows(args, kwargs):
        return len(args[0] if args else kwargs["input_features"])

    def forward(*args, **kwargs):
        encoded.append(rows(args, kwargs))
        return own(*args, **kwargs)

    hook = encoder.register_forward_pre_hook(lambda _, args, kwargs: asked.append(rows(args, kwargs)), with_kwargs=True)
    encoder.forward = forward
    try:
        result = tune_weights(asr, clips, lm_weights=[0.0, 2.0], phrase_weights=[0.0, 3.0], **FEW)
    finally:
        hook.remove()
        del encoder.forward
    for point in result.points:
        texts = heard(asr, clips, **point.setting)
        assert counted(point) == counts(clips, texts) and point.characters == character_errors(references(clips), texts)
    assert len({point.cer for point in result.points}) > 1
    assert result.search == {"num_beams": settings.get("num_beams", 5)}
    if "chunk_length_s" not in settings:
        # Three recordings, and windows of the long one that settings have made begin elsewhere.
        assert 3 <= sum(encoded) < sum(asked) / 2
    assert "forward" not in vars(encoder)


def test_the_internal_lm_of_attention_decoders_is_tuned_without_being_asked_for(whisper):
    """With a strong LM beside it, it is what costs most errors; nobody has to know that it is there."""
    lm = NGramLM.train(["play the next song"] * 9, tokenizer=whisper["tokenizer"], order=2)
    noise = np.random.default_rng(0).standard_normal(9000).astype(np.float32) / 9
    asr = pipeline(TASK, **whisper, max_new_tokens=9, lm=lm, lm_weight=0.5)

    def tried(**grids):
        result = tune_weights(asr, [{"audio": noise, "text": "play the next song"}], **grids, **FEW)
        return result, [(point.setting["lm_weight"], point.setting.get("ilm_weight")) for point in result.points]

    result, settings = tried()
    assert {0.0, 0.25, 0.5} <= {weight for _, weight in settings} and len(settings) <= 2 * (11 + 3)  # not in all combinations
    assert "ilm_weight" in result.tuned.settings and result.baseline.setting["ilm_weight"] == 0.0
    assert tried(lm_weights=[0.3, 0.6], ilm_weights=0.0)[1] == [(0.3, 0.0), (0.6, 0.0)]
    both = {"lm_weights": [0.3, 0.6], "ilm_weights": [0.0, 0.4]}  # somebody wants to see these
    assert tried(**both)[1] == [(0.3, 0.0), (0.3, 0.4), (0.6, 0.0), (0.6, 0.4)]


def test_coarse_to_fine_and_held_out(asr, outputs, lm):
    decoder = CTCDecoder(asr.tokenizer, lm, 0.5, num_beams=4)
    result = tune_weights(decoder, outputs, lm_weights="0:2:1", held_out=0.5)
    assert {0.0, 1.0, 2.0} < {point.setting["lm_weight"] for point in result.points}
    assert result.utterances == 3
    chosen_by, others = outputs[0::2], outputs[1::2]
    for point, items, setting in (
        (result.best, chosen_by, result.best.setting),
        (result.held_out, others, result.best.setting),
        (result.held_out_baseline, others, {"lm_weight": 0.0}),
    ):
        made = CTCDecoder(asr.tokenizer, lm, **setting, num_beams=4)
        texts = [made(item["logits"][None])[0][0].text for item in items]
        assert counted(point) == counts(items, texts)
    third = tune_weights(decoder, outputs, lm_weights=[1.0], held_out=1 / 3, **FEW)
    assert third.utterances == 4 and third.held_out.words.length == sum(len(outputs[i]["text"].split()) for i in (2, 5))


def test_what_is_there_to_weigh_is_tuned_unless_its_weight_is_given(asr, outputs, lm):
    """Whatever else is tuned: a weight that nobody gave is none to measure with."""
    decoder = CTCDecoder(asr.tokenizer, lm, 0.5, ["harbour master"], 1.0, num_beams=4)
    of_lm, of_phrases = {round(0.2 * i, 9) for i in range(11)}, {0.5 * i for i in range(7)}

    def tried(**grids):
        points = tune_weights(decoder, outputs[:2], **grids, **FEW).points
        return {name: {point.setting[name] for point in points} for name in points[0].setting}

    assert tried(betas=[0.0, 2.0]) == {"lm_weight": of_lm, "phrase_weight": of_phrases, "beta": {0.0, 2.0}}
    assert tried(phrase_weights=[1.0, 2.0]) == {"lm_weight": of_lm, "phrase_weight": {1.0, 2.0}}
    assert tried(lm_weights=0.5) == {"lm_weight": {0.5}, "phrase_weight": of_phrases}
    assert tried(lm_weights=0.5, phrase_weights=1.0) == {"lm_weight": {0.5}, "phrase_weight": {1.0}}
    decoder = CTCDecoder(asr.tokenizer, lm, torch.tensor([0.4, 0.8]), num_beams=4)  # given for each utterance
    assert tried(betas=[0.0, 2.0]) == {"beta": {0.0, 2.0}}
    with pytest.raises(ValueError, match="nothing to tune: no language model, phrases or rescorer whose weight is the same"):
        tried()


def test_doubts_are_told(asr, outputs, lm, caplog):
    decoder = CTCDecoder(asr.tokenizer, lm, 0.5, num_beams=4)
    with_one_less = [*outputs[:3], {"logits": outputs[3]["logits"], "text": None}, *outputs[4:]]
    result = tune_weights(decoder, with_one_less, lm_weights=[0.0, 0.4], refine=0, extend=False)
    words = sum(len(item["text"].split()) for item in with_one_less if item["text"])
    assert result.warnings == (
        "1 of 6 utterances have no transcript and are left out",
        f"only {words} words: the choice isn't reliable; take 500 or more",
        "the best lm_weight, 0.4, lies at the edge of its grid: widen the grid",
    )
    assert [record.message for record in caplog.records][-3:] == list(result.warnings)
    assert tune_weights(decoder, outputs, lm_weights=[0.8, 1.0], refine=0, least_words=10).warnings == ()


@pytest.mark.slow
def test_results_are_saved_and_drawn(asr, outputs, lm, tmp_path):
    decoder = CTCDecoder(asr.tokenizer, lm, 0.5, num_beams=4)
    one = tune_weights(decoder, outputs, refine=0, extend=False)  # the weight of the LM, if nothing is asked for
    two = tune_weights(decoder, outputs, lm_weights=[0.0, 0.5, 1.0], betas=[0.0, 2.0], by="cer", **FEW)
    one.save(tmp_path / "points.json")
    saved = json.loads((tmp_path / "points.json").read_text())
    assert [point["lm_weight"] for point in saved["points"]] == [point.setting["lm_weight"] for point in one.points]
    assert [point["wer"] for point in saved["points"]] == [point.wer for point in one.points]
    assert saved["best"]["lm_weight"] == one.best.setting["lm_weight"] and saved["search"] == {"num_beams": 4}
    pytest.importorskip("matplotlib")
    for result, path in ((one, "one.png"), (two, "two.png"), (two, "two.svg")):
        result.plot(tmp_path / path)
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG") and (tmp_path / "one.png").stat().st_size > 10_000
    for word in ("CER", "WER", "deletions", "insertions"):
        assert f"<!-- {word} (%) -->" in (tmp_path / "two.svg").read_text()


def test_bad_input(asr, clips, outputs, lm):
    beam, greedy = (CTCDecoder(asr.tokenizer, lm, num_beams=beams) for beams in (4, 1))
    without_texts = [{"logits": item["logits"]} for item in outputs]
    for decoder, dataset, settings, message in (
        (beam, [], {}, "the dataset is empty"),
        (beam, without_texts, {}, "none of the 6 utterances has a transcript"),
        (beam, [{**outputs[0], "text": ""}], {}, "wer isn.t defined"),
        (beam, [{**outputs[0], "text": 7}], {}, "number 0 of the dataset: text should be a transcript, got 7"),
        (beam, [{**outputs[0], "entities": "oslo"}], {}, "entities should be a list of phrases, got 'oslo'"),
        (beam, ["a.wav"], {}, "number 0 of the dataset should be a mapping"),
        (beam, "data.jsonl", {}, "dataset should be utterances, got 'data.jsonl'; see .*read_recordings"),
        (beam, [{"logits": [[0.0]], "text": "a"}], {}, r"logits should be a floating point tensor \[T, C\], got list"),
        (beam, clips, {}, "the dataset has no logits, and a CTCDecoder can.t compute them .* pass a pipeline"),
        (beam, [outputs[0], {"text": "a"}], {}, "number 1 of the dataset has no logits"),
        (asr, [{"text": "a"}], {}, r"number 0 of the dataset: audio should be a path, .* got none \(the row has text\)"),
        (asr, [{"text": "a", "audio": "nowhere.wav"}], {}, "nowhere.wav"),
        (greedy, outputs, {"betas": "0:1:1"}, "beta can't be tuned: it is a bonus of beam search: also pass num_beams="),
        (beam, outputs, {"ilm_weights": "0:1:1"}, "ilm_weight can't be tuned: only transducers and attention decoders"),
        (beam, outputs, {"source_weights": "0:1:1"}, "source_weight can't be tuned: there is no source LM"),
        (beam, outputs, {"phrase_weights": "0:1:1"}, "phrase_weight can't be tuned: there are no phrases"),
        (beam, outputs, {"lm_weights": [-1.0]}, "lm_weight should be a number from 0 to 1000, got -1.0"),
        (beam, outputs, {"lm_weights": math.nan}, "lm_weight should be a number from 0 to 1000, got nan"),
        (beam, outputs, {"lm_weights": "0-2"}, "the grid of lm_weight can't be read: '0-2'"),
        (beam, outputs, {"by": "ser"}, "by should be one of"),
        (beam, outputs[3:], {"by": "entity_wer"}, "needs entities, but no utterance has any"),
        (beam, outputs, {"held_out": 1.0}, "held_out should be a share"),
        (beam, outputs, {"held_out": 0.1}, "6 utterances can't be divided: held_out=0.1 leaves one part empty"),
        (beam, outputs, {"refine": -1}, "refine should be a whole number"),
        (beam, outputs, {"level": 95}, "level should lie between 0 and 1"),
        (beam, outputs, {"memory": "much"}, "memory should be a size"),
        (CTCDecoder(asr.tokenizer, num_beams=4), outputs, {"lm_weights": [1]}, "there is no language model: pass lm="),
        (lm, outputs, {}, "takes a speech recognition pipeline .* got NGramLM"),
    ):  # fmt: skip
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            tune_weights(decoder, dataset, **settings)
    plain = pipeline(TASK, model=asr.model, tokenizer=asr.tokenizer, feature_extractor=asr.feature_extractor)
    with pytest.raises(ValueError, match="no language model, phrases or rescorer to weigh"):
        tune_weights(plain, clips)
    other = NGramLM.train([[1, 2]], vocab_size=9999, order=1, discount_fallback=(0.5, 1, 1.5))
    with pytest.raises(TokenizerMismatchError):
        plain(clips[0]["audio"].copy(), lm=other)
    with pytest.raises(ValueError, match="the settings' model isn't known"):
        _ = tune_weights(beam, outputs, lm_weights=[0.5], **FEW).tuned


def test_audio_without_samples_is_heard_as_nothing(asr, clips, whisper):
    silent = [{"audio": np.zeros(0, np.float32), "text": "never said"}]
    result = tune_weights(asr, [*silent, *clips[:2], *silent], lm_weights=[0.5], **FEW)
    some = tune_weights(asr, clips[:2], lm_weights=[0.5], **FEW)
    assert result.best.words.deletions == some.best.words.deletions + 4 and result.best.words.hits == some.best.words.hits
    lm = NGramLM.train(["play the next song"] * 9, tokenizer=whisper["tokenizer"], order=2)
    asr = pipeline(TASK, **whisper, max_new_tokens=9, lm=lm)
    assert tune_weights(asr, silent, lm_weights=[0.5], **FEW).best.words.deletions == 2


def test_tensors_come_back_as_they_were(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((3, 5), (0, 5), (7,), (2, 3, 4))
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64)
    ]
    for memory in (1, 50, "1M"):
        with KeptTensors(memory, tmp_path) as kept:
            numbers = [kept.add(tensor) for tensor in tensors]
            assert (kept.on_disk > 0) == (memory != "1M")
            for number, tensor in reversed(list(zip(numbers, tensors))):
                again = kept[number]
                assert again.dtype == tensor.dtype and kept.shape(number) == again.shape and torch.equal(again, tensor)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("settings", [{"batch_size": 3}, {"chunk_length_s": 1.6}, {"chunk_length_s": 1.6, "batch_size": 2}])
def test_batches_and_chunks_of_the_model(settings, asr, clips, lm):
    """With padding, and with seams, as a call of the pipeline has them."""
    parts = {name: getattr(asr, name) for name in ("model", "tokenizer", "feature_extractor")}
    made = pipeline(TASK, **parts, lm=lm, lm_weight=0.5, **{k: v for k, v in settings.items() if k != "batch_size"})
    batch_size = settings.get("batch_size", 1)
    result = tune_weights(made, clips[:4], lm_weights=[0.7], batch_size=batch_size, **FEW)
    texts = [
        found["text"] for found in made([clip["audio"].copy() for clip in clips[:4]], batch_size=batch_size, lm_weight=0.7)
    ]
    assert counted(result.best) == counts(clips[:4], texts)
    assert result.best.characters == character_errors(references(clips[:4]), texts)
