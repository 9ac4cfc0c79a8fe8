"""Grammars in `model.generate`: what the pipeline understands, by a strategy, and in its sentences alone, by a processor."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from speech_models import whisper_parts
from transformers import LogitsProcessor, pipeline

import hf_ngpulm
from hf_ngpulm import Grammar, NGramLM, NGramLogitsProcessor
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.generation.runaways import runs_away
from hf_ngpulm.grammar.expressions import Number, Repeat, Sequence, Slot

TASK = "automatic-speech-recognition"
TELL = Sequence("tell the", Slot("who", "harbour master", "hm"), "we will be", Slot("minutes", Number(1, 60)), "minutes late")
GRAMMAR = Grammar({"tell": TELL, "sail": ["drop the anchor"]})
OTHER = Grammar({"sail": ["drop the anchor"]})
# Letters that the tiny tokenizer has in small only.
SMALL = Grammar({"a": ["big fop", "vex him"], "b": Sequence("go", Slot("where", ["in", "up high"]))})
SETTINGS = {
    "reject": {}, "sensitive": {"sensitivity": 1.0}, "insensitive": {"sensitivity": 0.0}, "strict": {"grammar_mode": "strict"},
    "soft": {"grammar_mode": "soft"}, "free": {"grammar_mode": "free"},
}  # fmt: skip


@pytest.fixture(scope="module", params=[pytest.param("canary", marks=pytest.mark.slow), "whisper"])
def asr(request, tmp_path_factory):
    if request.param == "canary":
        made = pipeline(TASK, model=str(bundled("examples/models/canary")), dtype=torch.float32)
        clip = hf_ngpulm.demo_recording()
        made.clips, made.grammar = [clip, clip[: 2 * len(clip) // 3]], GRAMMAR
        made.lm = hf_ngpulm.demo_lm()
    else:
        made = pipeline(TASK, **whisper_parts(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"), max_new_tokens=20)
        generator = np.random.default_rng(0)
        made.clips = [generator.standard_normal(16000).astype(np.float32) / 9 for _ in range(2)]
        made.grammar, made.lm = SMALL, NGramLM.train(["go up high", "vex big fop"] * 5, tokenizer=made.tokenizer, order=2)
    return made


def offline(asr, beams, **settings):
    settings = {"generate_kwargs": {"num_beams": beams}, **settings}
    return asr([clip.copy() for clip in asr.clips], batch_size=2, **settings)


def features(asr):
    given = {"sampling_rate": 16000, "return_tensors": "pt"}
    if asr.type == "seq2seq_whisper":
        return {"input_features": asr.feature_extractor(asr.clips, **given).input_features, "max_new_tokens": 20}
    return dict(asr.feature_extractor(asr.clips, padding=True, return_attention_mask=True, **given))


def strategy(asr, beams, **settings):
    """The tokens, and what the strategy has understood."""
    meanings = []
    how = {"custom_generate": seq2seq_generate, "processor": asr.tokenizer, "meanings": meanings, **settings}
    return asr.model.generate(**features(asr), num_beams=beams, **how), meanings


def same(found, wanted):
    assert found.keys() == wanted.keys()
    close = {name: pytest.approx(wanted[name], abs=1e-4) for name in ("confidence",)}
    assert found == {**wanted, **close}


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("mode", SETTINGS)
def test_the_strategy_understands_what_the_pipeline_does(asr, mode, beams):
    wanted = offline(asr, beams, grammar=asr.grammar, **SETTINGS[mode])
    tokens, found = strategy(asr, beams, grammar=asr.grammar, **SETTINGS[mode])
    for row, meant, expected in zip(tokens, found, wanted, strict=True):
        same(meant.as_dict(), expected)
        assert asr.tokenizer.decode(row, skip_special_tokens=True).strip() == expected["text"].strip()


def test_beside_a_language_model_and_phrases(asr):
    phrases = {"phrases": ["the harbour", "vex"], "phrase_weight": 2.0}
    wanted = offline(asr, 3, grammar=asr.grammar, lm=asr.lm, lm_weight=0.4, **phrases)
    tokens, found = strategy(asr, 3, grammar=asr.grammar, lm=asr.lm, lm_weight=0.4, return_dict_in_generate=True, **phrases)
    for row, meant, expected in zip(tokens.sequences, found, wanted, strict=True):
        same(meant.as_dict(), expected)
        assert asr.tokenizer.decode(row, skip_special_tokens=True).strip() == expected["text"].strip()


def test_other_speech_is_rejected(asr):
    if asr.type == "seq2seq_whisper":
        pytest.skip("its random model has no speech of its own")
    tokens, (told, _) = strategy(asr, 1, grammar=OTHER)
    plain = asr.model.generate(**features(asr), num_beams=1)
    assert not told.understood and told.intent is None
    free, heard = (asr.tokenizer.decode(each[0], skip_special_tokens=True) for each in (tokens, plain))
    assert free == heard == told.free_text
    assert strategy(asr, 1, grammar=GRAMMAR)[1][0].understood


@pytest.mark.parametrize("beams", [1, 3])
def test_the_processor_is_strict(asr, beams):
    """Plain `generate` with a compiled grammar says what the strategy says in the mode "strict"."""
    compiled = asr.grammar.compiled(asr.tokenizer)
    processor = NGramLogitsProcessor(phrases=compiled, model=asr.model, tokenizer=asr.tokenizer)
    tokens = asr.model.generate(**features(asr), num_beams=beams, logits_processor=[processor])
    ours, meanings = strategy(asr, beams, grammar=asr.grammar, grammar_mode="strict")
    assert torch.equal(tokens, ours)
    if asr.type == "seq2seq_whisper":
        assert all(each.understood for each in meanings)


class Bias(LogitsProcessor):
    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, input_ids, scores):
        scores[:, self.tokens] += 60.0
        return scores


@pytest.mark.parametrize("beams", [1, 3])
def test_no_control_token_and_no_run_of_marks_leads_away(asr, beams):
    """Models write control tokens in mid-transcript, or marks without end, where the grammar leaves nothing better."""
    tokenizer, compiled = asr.tokenizer, asr.grammar.compiled(asr.tokenizer)
    marks = sorted(compiled.marks)
    for tokens in filter(None, (sorted({*tokenizer.all_special_ids} - {tokenizer.eos_token_id}), marks)):
        biased = {"logits_processor": [Bias(tokens)]}
        given = {"grammar": asr.grammar, "grammar_mode": "strict", **biased}
        found, meanings = strategy(asr, beams, **given)
        assert all(each.understood for each in meanings)
        processor = NGramLogitsProcessor(phrases=compiled, model=asr.model, tokenizer=tokenizer)
        biased["logits_processor"].append(processor)
        assert torch.equal(asr.model.generate(**features(asr), num_beams=beams, **biased), found)
        mixed = NGramLogitsProcessor(phrases=[compiled, None], model=asr.model, tokenizer=tokenizer)
        biased["logits_processor"][1] = mixed
        of_first, of_second = asr.model.generate(**features(asr), num_beams=beams, **biased)
        text = [token for token in of_first.tolist() if token not in tokenizer.all_special_ids]
        assert compiled.reading(text) is not None and set(of_second.tolist()) & set(tokens)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_sentence_may_repeat_a_word(asr, beams):
    """In other searches nothing is added to the model's scores while a transcript repeats a phrase."""
    grammar = Grammar({"a": Sequence(Repeat("go", 5, 5), "in")})
    other = asr.tokenizer("x", add_special_tokens=False).input_ids
    given = {"grammar": grammar, "grammar_mode": "strict", "logits_processor": [Bias(other)], "no_repeat_ngram_size": 0}
    assert [each.intent for each in strategy(asr, beams, **given)[1]] == ["a", "a"]
    compiled, special = grammar.compiled(asr.tokenizer), asr.tokenizer.all_special_ids
    processor = NGramLogitsProcessor(phrases=compiled, model=asr.model, tokenizer=asr.tokenizer)
    plain = {"num_beams": beams, "logits_processor": [Bias(other), processor], "no_repeat_ngram_size": 0}
    for row in asr.model.generate(**features(asr), **plain):
        assert compiled.reading([token for token in row.tolist() if token not in special]).intent == "a"


@pytest.mark.parametrize("beams", [1, 3])
def test_a_runaway_is_cut_before_the_grammar_is_compared_with_it(asr, beams):
    """The models themselves find a runaway less likely than its beginning, as they would say neither."""
    word = asr.tokenizer(" x", add_special_tokens=False).input_ids[-1]
    given = {"logits_processor": [Bias([word])], "no_repeat_ngram_size": 0}
    plain = asr.model.generate(**features(asr), num_beams=beams, custom_generate=seq2seq_generate, **given)
    assert all(runs_away([token for token in row if token == word]) for row in plain.tolist())
    tokens, meanings = strategy(asr, beams, grammar=asr.grammar, sensitivity=0.0, **given)
    offline_too = offline(asr, beams, grammar=asr.grammar, sensitivity=0.0, generate_kwargs={"num_beams": beams, **given})
    for row, meant, told in zip(tokens.tolist(), meanings, offline_too, strict=True):
        assert row.count(word) == 1 and meant.free_text == told["free_text"].strip() and meant.free_text.count("x") == 1


def test_timestamps_stay_possible(asr):
    if asr.type != "seq2seq_whisper":
        pytest.skip("writes no timestamps")
    compiled = asr.grammar.compiled(asr.tokenizer)
    processor = NGramLogitsProcessor(phrases=compiled, model=asr.model, tokenizer=asr.tokenizer)
    found = asr.model.generate(**features(asr), return_timestamps=True, logits_processor=[processor])
    first = asr.model.generation_config.no_timestamps_token_id + 1
    assert all(any(token >= first for token in row) for row in found.tolist())


def test_a_copy_on_the_hub_takes_them_too(asr, tmp_path):
    folder = tmp_path / "custom_generate"
    shutil.copytree(bundled("examples/custom_generate"), folder)
    (folder / "custom_generate/requirements.txt").unlink()
    tokens, found = strategy(asr, 1, grammar=asr.grammar, custom_generate=str(folder), trust_remote_code=True)
    ours, wanted = strategy(asr, 1, grammar=asr.grammar)
    assert torch.equal(tokens, ours) and [each.as_dict() for each in found] == [each.as_dict() for each in wanted]


def test_what_a_grammar_rules_out_is_told(asr):
    for settings, message in (
        ({"do_sample": True, "temperature": 0.5}, "rules out do_sample"),
        ({"num_return_sequences": 2}, "rules out num_return_sequences above 1"),
        ({"return_dict_in_generate": True, "output_scores": True}, "rules out output_scores"),
        ({"processor": None}, "pass processor=, the model's processor or tokenizer"),
        ({"grammar": "a.jsgf"}, "grammar should be a hf_ngpulm.Grammar"),
        ({"grammar_mode": "strict", "sensitivity": 0.3}, "sensitivity=0.3 has no effect in the mode 'strict'"),
        ({"grammar": None, "meanings": None, "sensitivity": 0.3}, "sensitivity.*without a grammar: pass grammar="),
        ({"grammar": None}, "meanings.*without a grammar: pass grammar="),
    ):
        beams = 2 if "num_return_sequences" in settings else 1
        with pytest.raises((ValueError, TypeError), match=message):
            strategy(asr, beams, **{"grammar": asr.grammar, **settings})
    if asr.type == "seq2seq_whisper":
        for given, message in (({"return_timestamps": True}, "return_timestamps"), ({"logprob_threshold": -1.0}, "logprob")):
            with pytest.raises(ValueError, match=message):
                strategy(asr, 1, grammar=asr.grammar, **given)
        long = asr.feature_extractor(np.tile(asr.clips[0], 2), sampling_rate=16000, return_tensors="pt", truncation=False)
        how = {"custom_generate": seq2seq_generate, "processor": asr.tokenizer, "grammar": asr.grammar}
        with pytest.raises(ValueError, match="rules out audio longer than a window"):
            asr.model.generate(long.input_features, return_timestamps=True, **how)
