"""`false_alarms_per_hour=` and `explain=` in pipelines and on the command line, on the bundled models and recordings."""

from __future__ import annotations

import json

import pytest
import soundfile
import torch
from transformers import LogitsProcessor, pipeline

import hf_ngpulm
from hf_ngpulm import Grammar, Phrase
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.thresholds import Thresholds
from hf_ngpulm.pipelines.encoding import encoder_returns

TASK = "automatic-speech-recognition"
PHRASES = [Phrase("Harbour Master"), "minute slate", "lighthouse"]


@pytest.fixture(scope="module", params=["ctc", "rnnt", "tdt", "canary"])
def asr(request):
    return pipeline(TASK, model=str(bundled("examples/models") / request.param), dtype=torch.float32)


def test_phrases_that_were_not_said_go_and_results_say_why(asr):
    audio = hf_ngpulm.demo_recording()
    plain = asr(audio, num_beams=4)
    flat = asr(audio, phrases=PHRASES, phrase_weight=6.0, num_beams=4)
    told = asr(audio, phrases=PHRASES, phrase_weight=6.0, explain=True, num_beams=4)
    attention = asr.model.config.model_type == "canary"  # flat boosts leave aliases and case as they were heard there
    assert told["text"] == (flat["text"].replace("harbour master", "Harbour Master") if attention else flat["text"])
    assert "phrases" not in flat
    assert sorted(report["text"] for report in told["phrases"] if report["heard"]) == sorted(
        phrase for phrase in ("Harbour Master", "minute slate", "lighthouse") if phrase in told["text"]
    )
    never = [
        Phrase("Harbour Master", threshold=1e6),
        Phrase("minute slate", threshold=1e6),
        Phrase("lighthouse", threshold=1e6),
    ]
    gone = asr(audio, phrases=never, phrase_weight=6.0, explain=True, num_beams=4)
    assert gone["text"].lower() == plain["text"].lower()
    by_text = {report["text"]: report for report in gone["phrases"]}
    assert set(by_text) == {"Harbour Master", "minute slate", "lighthouse"}
    assert not by_text["lighthouse"]["heard"]
    for report in gone["phrases"]:
        assert "ratio" not in report or (not report["heard"] and report["threshold"] >= 1e6 and "instead" in report)
    json.dumps(told)
    look = {"false_alarms_per_hour": 1, "thresholds": Thresholds(1e5, 0.0, 0.0, 0.0)}
    refused = asr(audio, phrases=PHRASES, phrase_weight=6.0, explain=True, num_beams=4, **look)
    assert refused["text"].lower() == plain["text"].lower()
    assert {report["threshold"] for report in refused["phrases"] if "ratio" in report} <= {1e5, 2e5}


class Looping(LogitsProcessor):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores):
        scores[:, self.token] += 60.0
        return scores


def test_a_runaway_is_no_measure_of_phrases():
    """Any phrase is likelier than a runaway. So the model's own transcript is cut first."""
    asr = pipeline(TASK, model=str(bundled("examples/models/canary")), dtype=torch.float32)
    token = asr.tokenizer.convert_tokens_to_ids("▁the")
    given = {"num_beams": 1, "max_new_tokens": 30, "logits_processor": [Looping(token)]}
    audio = hf_ngpulm.demo_recording()
    assert asr(audio, generate_kwargs=given)["text"].split().count("the") > 20
    look = {"phrases": ["lighthouse"], "phrase_weight": 1.0, "false_alarms_per_hour": 1}
    assert asr(audio, generate_kwargs=given, **look)["text"].split() == ["the"]


def test_the_encoder_still_hears_other_rows():
    asr = pipeline(TASK, model=str(bundled("examples/models/canary")), dtype=torch.float32)
    features = asr.feature_extractor([hf_ngpulm.demo_recording()] * 2, sampling_rate=16000, return_tensors="pt")
    encoder = asr.model.get_encoder()
    with torch.inference_mode():
        right, both = encoder(features.input_features[:1]), encoder(features.input_features)
        kept = type(both)(last_hidden_state=torch.zeros_like(both.last_hidden_state))
        with encoder_returns(asr.model, kept):
            assert encoder(features.input_features)[0].eq(0).all() and torch.equal(
                encoder(features.input_features[:1])[0], right[0]
            )
        assert torch.equal(encoder(input_features=features.input_features)[0], both[0])


def test_an_encoder_decoders_ratio_is_that_of_its_probabilities():
    asr = pipeline(TASK, model=str(bundled("examples/models/canary")), dtype=torch.float32)
    audio, runs, layers = hf_ngpulm.demo_recording(), [], []
    asr.model.get_encoder().register_forward_hook(lambda *given: runs.append(given[-1]))
    next(asr.model.get_encoder().children()).register_forward_hook(lambda *given: layers.append(given))
    phrases = ["harbour master", "minute slate"]
    told = asr(audio, phrases=phrases, phrase_weight=6.0, explain=True, num_beams=4)
    assert len(layers) == 1  # the encoder has run once, for two calls of generate
    tokenizer, plain = asr.tokenizer, asr(audio, num_beams=4)["text"]
    assert [report["instead"] for report in told["phrases"]] == ["habor", "minutes late"]
    config = asr.model.generation_config
    given = asr.feature_extractor(audio, sampling_rate=16000, return_tensors="pt")
    prompt = asr.model.generate(**given, max_new_tokens=1)[0].tolist()
    prompt = [token for token in prompt if token in tokenizer.all_special_ids]

    @torch.no_grad()
    def score(text):
        found, tokens = 0.0, [*tokenizer(text, add_special_tokens=False)["input_ids"], config.eos_token_id]
        states = type(runs[0])(last_hidden_state=runs[0][0][:1])
        for place, token in enumerate(tokens):
            given = torch.tensor([[*prompt, *tokens[:place]]])
            found += float(asr.model(encoder_outputs=states, decoder_input_ids=given).logits[0, -1].log_softmax(-1)[token])
        return found

    for report, (old, new) in zip(told["phrases"], (("habor", "harbour"), ("minutes late", "minute slate"))):
        assert report["heard"] and report["ratio"] == pytest.approx(score(plain.replace(old, new)) - score(plain), abs=1e-3)
    never = asr(audio, phrases=phrases, phrase_weight=6.0, false_alarms_per_hour=1e-6, explain=True, num_beams=4)
    assert never["text"] == plain and all(report["threshold"] > report["ratio"] for report in never["phrases"])


def test_each_recording_has_its_phrases_also_in_chunks(asr):
    audio = hf_ngpulm.demo_recording()
    lists = [PHRASES, None, ["lighthouse"]]
    found = asr([audio] * 3, phrases=lists, false_alarms_per_hour=1.0, explain=True, batch_size=2)
    assert [len(each["phrases"]) >= len(own or []) for each, own in zip(found, lists)] == [True] * 3
    assert found[1]["phrases"] == []
    if asr.model.config.model_type == "canary":
        with pytest.raises(ValueError, match="second look at phrases needs whole recordings"):
            asr([audio], phrases=[PHRASES], false_alarms_per_hour=1.0, chunk_length_s=30)
        return
    (whole,) = asr([audio], phrases=[PHRASES], false_alarms_per_hour=1.0, chunk_length_s=30)
    assert whole["text"] == found[0]["text"]


def test_idle_settings_are_refused(asr):
    audio = hf_ngpulm.demo_recording()
    with pytest.raises(ValueError, match=r"false_alarms_per_hour given without phrases="):
        asr(audio, false_alarms_per_hour=1.0)
    with pytest.raises(ValueError, match="which a grammar doesn't have"):
        asr(hf_ngpulm.demo_recording(), grammar=Grammar({"stop": ["stop"]}), phrases=[Phrase("lighthouse", threshold=1.0)])
    with pytest.raises(ValueError, match="not to a grammar"):
        asr(audio, phrases=["a"], false_alarms_per_hour=1.0, grammar=Grammar({"sail": ["drop the anchor"]}))
    with pytest.raises(ValueError, match="false_alarms_per_hour"):
        asr(audio, phrases=["a"], false_alarms_per_hour=-1.0)


def test_command_line(capsys, tmp_path):
    soundfile.write(tmp_path / "a.wav", hf_ngpulm.demo_recording(), 16000)
    model = str(bundled("examples/models/ctc"))
    arguments = [str(tmp_path / "a.wav"), "--model", model, "--phrases", "lighthouse", "--explain"]
    run(["transcribe", *arguments])
    assert "heard" in capsys.readouterr().out
    run(["transcribe", *arguments, "--false-alarms-per-hour", "2", "--json"])
    assert json.loads(capsys.readouterr().out)["phrases"][0]["text"] == "lighthouse"
