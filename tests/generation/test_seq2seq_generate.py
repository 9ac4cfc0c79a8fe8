"""`model.generate(custom_generate=seq2seq_generate)`: the results of stock `generate`, without and with a language model."""

from __future__ import annotations

import importlib.metadata
import math
import shutil

import pytest
import torch
from speech_models import FAMILIES, TEXT, Tokens, prompts
from test_logits_processor import LLMS, favouring, silenced, takes_embeddings, trained
from tiny_transducers import FAMILIES as TRANSDUCERS
from tiny_transducers import tiny_model
from transformers import CompileConfig, LogitsProcessor, MaxLengthCriteria, StoppingCriteria

from hf_ngpulm import InvalidLogitsError, NGramLM, NGramLogitsProcessor, TokenizerMismatchError
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.families import CACHE
from hf_ngpulm.generation import seq2seq_generate, transducer_generate
from hf_ngpulm.generation.lm_argument import _language_models
from hf_ngpulm.search.attention_step.candidates import best_tokens

SEARCHES = {
    "greedy": {},
    "sampling": {"do_sample": True, "num_return_sequences": 2, "temperature": 0.7},
    "beams": {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.7},
    "early": {"num_beams": 4, "early_stopping": True, "renormalize_logits": True},
    "never": {"num_beams": 2, "early_stopping": "never", "length_penalty": 1.3},
    "drawn beams": {"num_beams": 3, "do_sample": True, "top_k": 20},
}
TOLD = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
FEW = [name for name in ("whisper", "moonshine", "speech_to_text", "canary", "granite_speech") if name in FAMILIES]


@pytest.fixture(scope="module")
def lm():
    return trained(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The repo as it would lie on the Hub."""
    copied = tmp_path_factory.mktemp("repo") / "custom_generate"
    shutil.copytree(bundled("examples/custom_generate"), copied)
    try:
        importlib.metadata.distribution("hf_ngpulm")
    except importlib.metadata.PackageNotFoundError:  # the source tree, which Transformers doesn't take for an installed package
        (copied / "custom_generate/requirements.txt").unlink()
    return str(copied)


def stock(family, lm=None, weight=0.7, rules=None, others=(), **settings):
    """What `generate` says, with a processor for the language model behind others."""
    ours = [NGramLogitsProcessor(lm, weight, model=family.model, **(family.settings or {}), **(rules or {}))] if lm else []
    torch.manual_seed(0)
    return family.model.generate(**{**family.inputs, **settings}, logits_processor=[*others, *ours])


def strategy(family, lm=False, weight=0.7, rules=None, others=(), how=seq2seq_generate, **settings):
    """What it says with the strategy."""
    known = {"processor" if name == "tokenizer" else name: value for name, value in (family.settings or {}).items()}
    with_lm = {"lm": lm, "lm_weight": weight, **known, **(rules or {})} if lm is not False else {"lm": False}
    torch.manual_seed(0)
    return family.model.generate(**{**family.inputs, **settings}, logits_processor=list(others), custom_generate=how, **with_lm)


def check(found, expected):
    """Everything that `generate` returns, but the cache."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
        return
    assert found.keys() == expected.keys()
    for name in expected.keys() - {CACHE}:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_generate_with_and_without_a_language_model(name, search, lm):
    family = silenced(FAMILIES[name])
    plain = stock(family, **SEARCHES[search], **TOLD)
    check(strategy(family, **SEARCHES[search], **TOLD), plain)
    fused = stock(family, lm, **SEARCHES[search], **TOLD)
    check(strategy(family, lm, **SEARCHES[search], **TOLD), fused)
    assert not torch.equal(fused.sequences, plain.sequences)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("name", FEW)
def test_every_recording_has_its_own_lm_and_weight(name, num_beams, lm):
    family = silenced(FAMILIES[name])
    for lms in ([lm, trained(1)], [None, lm]):
        for weight in (0.7, torch.tensor([0.3, 1.1])):
            fused = stock(family, lms, weight, num_beams=num_beams)
            check(strategy(family, lms, weight, num_beams=num_beams), fused)


@pytest.mark.parametrize("rules", [{"unscored": "none"}, {"score_eos": False}, {"engine": "reference"}], ids=str)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_rules_of_scoring_are_the_processors(num_beams, rules, lm):
    family = silenced(FAMILIES["moonshine"])
    check(
        strategy(family, lm, rules=rules, num_beams=num_beams, **TOLD),
        stock(family, lm, rules=rules, num_beams=num_beams, **TOLD),
    )


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", filter(takes_embeddings, LLMS))
def test_generation_from_embeddings(name, num_beams, lm):
    family = silenced(FAMILIES[name])
    embeddings = family.model.get_input_embeddings()(prompts([9, 10, 11]) + torch.tensor([[0], [7]]))
    family.inputs = {"inputs_embeds": embeddings, "attention_mask": torch.ones(2, 3, dtype=torch.int64)}
    check(strategy(family, lm, num_beams=num_beams, **TOLD), stock(family, lm, num_beams=num_beams, **TOLD))


@pytest.mark.skipif("qwen3_asr" not in FAMILIES, reason="this Transformers has no Qwen3-ASR")
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_transcript_that_is_announced_in_mid_generation(num_beams, lm):
    """The LM begins where the model says so itself."""
    family = silenced(FAMILIES["qwen3_asr"])
    family.model.generation_config.suppress_tokens = [0, 1, 3, *range(32, 40)]
    family.inputs["input_ids"] = prompts([29, *[38] * 13, 9, 9, 9, 9])
    for begin in TEXT[::4]:
        family.settings = {"start": [begin]}
        fused = stock(family, lm, num_beams=num_beams)
        check(strategy(family, lm, num_beams=num_beams), fused)


class Halving(LogitsProcessor):
    """A processor of the caller's that reads all tokens, and isn't one of Transformers'."""

    def __call__(self, input_ids, scores):
        return scores * (1 + (input_ids.sum(1, keepdim=True) % 2) / 2)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", FEW)
def test_other_processors_come_where_they_do_in_generate(name, num_beams, lm):
    family = silenced(FAMILIES[name])
    settings = {"repetition_penalty": 1.4, "min_new_tokens": 4, "others": [Halving()], "num_beams": num_beams, **TOLD}
    settings |= {"bad_words_ids": [[9], [10, 11]], "forced_eos_token_id": family.end}
    check(strategy(family, lm, **settings), stock(family, lm, **settings))


class Sum(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.sum(1) % 7 == 3


@pytest.mark.parametrize("num_beams", [1, 3])
def test_stopping_criteria(num_beams, lm):
    family = silenced(FAMILIES["speech_to_text"])
    settings = {"num_beams": num_beams, "stopping_criteria": [Sum()]}
    stopped = strategy(family, lm, **settings)
    check(stopped, stock(family, lm, **settings))
    assert stopped.tolist() != strategy(family, lm, num_beams=num_beams).tolist()
    longer = {"stopping_criteria": [MaxLengthCriteria(30)], "eos_token_id": 27}
    check(strategy(family, lm, **longer), stock(family, lm, **longer))


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", FEW)
def test_without_a_cache_and_with_other_outputs(name, num_beams, lm):
    family = silenced(FAMILIES[name])
    family.model.set_attn_implementation("eager")
    told = {"return_dict_in_generate": True, "output_attentions": True, "output_hidden_states": True, "num_beams": num_beams}
    check(strategy(family, lm, **told), stock(family, lm, **told))
    check(strategy(family, lm, use_cache=False, num_beams=num_beams), stock(family, lm, use_cache=False, num_beams=num_beams))


STATIC = [name for name in ("whisper", "moonshine", "speech_to_text", "granite_speech") if name in FAMILIES]


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", STATIC)
def test_a_static_cache(name, num_beams, lm):
    family = silenced(FAMILIES[name])
    settings = {"cache_implementation": "static", "num_beams": num_beams}
    check(strategy(family, lm, **settings), stock(family, lm, **settings))


def test_compiled_passes(lm):
    """As Transformers decides; here it is told to compile on any device."""
    family = silenced(FAMILIES["whisper"])
    config = CompileConfig(backend="eager", mode=None, fullgraph=False)
    config._compile_all_devices = True
    torch._dynamo.utils.counters.clear()
    fused = strategy(family, lm, cache_implementation="static", compile_config=config, **TOLD)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    check(fused, stock(family, lm, **TOLD))


class Streamer:
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, tokens):
        self.tokens.append(tokens.tolist())

    def end(self):
        self.ended = True


def test_a_streamer(lm, folder):
    family = silenced(FAMILIES["moonshine"])
    expected = Streamer()
    stock(family, lm, streamer=expected)
    for how in ({}, {"how": folder, "trust_remote_code": True}):
        found = Streamer()
        strategy(family, lm, streamer=found, **how)
        assert found.tokens == expected.tokens and found.ended and len(found.tokens) > 3
        with pytest.raises(ValueError, match="streamer"):
            strategy(family, lm, streamer=Streamer(), num_beams=2, **how)


@pytest.mark.parametrize("name", FEW)
def test_a_repo_with_the_strategy(name, lm, folder, tmp_path):
    family = silenced(FAMILIES[name])
    lm.save_pretrained(tmp_path)
    before = set(_language_models)
    for settings in ({}, {"num_beams": 3}):
        fused = stock(family, lm, **settings)
        check(strategy(family, str(tmp_path), how=folder, trust_remote_code=True, **settings), fused)
    assert len(set(_language_models) - before) == 1


def test_the_generation_config_may_name_an_lm(lm, tmp_path):
    family = silenced(FAMILIES["whisper"])
    lm.save_pretrained(tmp_path)
    given = {**family.inputs, "custom_generate": seq2seq_generate}
    heavy, light, plain = stock(family, lm, 2.0), stock(family, lm, 0.1), stock(family)
    assert len({str(found.tolist()) for found in (heavy, light, plain)}) == 3
    family.model.generation_config.ngram_lm, family.model.generation_config.ngram_lm_weight = str(tmp_path), 2.0
    assert torch.equal(family.model.generate(**given), heavy)
    assert torch.equal(family.model.generate(**given, lm_weight=0.1), light)
    assert torch.equal(family.model.generate(**given, lm=False), plain)


def test_weights_of_a_fifth_by_default_and_of_nothing(lm):
    family = silenced(FAMILIES["moonshine"])
    told = family.model.generate(**family.inputs, **TOLD, custom_generate=seq2seq_generate, lm=lm)
    check(told, stock(family, lm, 0.2, **TOLD))
    for num_beams in (1, 3):
        for nothing in (0, torch.zeros(2)):
            check(strategy(family, lm, nothing, num_beams=num_beams, **TOLD), stock(family, num_beams=num_beams, **TOLD))


class Nothing(LogitsProcessor):
    """Rules everything out for the second recording, or makes it NaN."""

    def __init__(self, value=-math.inf, after=3):
        self.value, self.after = value, after

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] >= self.after:
            scores[len(scores) // 2 :] = self.value
        return scores


@pytest.mark.parametrize("search", ["greedy", "sampling", "beams", "drawn beams"])
def test_a_recording_that_cannot_go_on(search, lm):
    family = silenced(FAMILIES["moonshine"])
    for value, what in ((-math.inf, "all tokens are ruled out"), (math.nan, "scores are NaN")):
        with pytest.raises(InvalidLogitsError, match=f"recording 1 can't go on: .*{what}"):
            strategy(family, lm, others=[Nothing(value)], **SEARCHES[search])


def test_bad_input(lm):
    family = silenced(FAMILIES["speech_to_text"])
    large = NGramLM.train([[4, 5]] * 3, vocab_size=41, order=2)
    for settings, error, message in (
        ({"lm": large}, ValueError, r"scores 41 token ids, Speech2Text\w+ has only 40"),
        ({"lm": large, "processor": Tokens()}, TokenizerMismatchError, "scores 41 token ids"),
        ({"lm": [lm] * 3}, ValueError, "lm lists 3 recordings, but there are 2"),
        ({"lm": [lm]}, ValueError, "lm lists 1 recordings, but there are 2"),
        ({"lm": lm, "lm_weight": torch.ones(4), "num_beams": 2}, ValueError, "lm_weight lists 4 recordings, but there are 2"),
        ({"lm": lm, "lm_weight": math.nan}, ValueError, "finite number"),
        ({"lm": lm, "unscored": "some"}, ValueError, "unscored should be one of"),
        ({"lm": "no/such/folder.arpa"}, FileNotFoundError, "no such file"),
        ({"lm_weight": 0.3}, ValueError, "lm_weight without a language model"),
        ({"score_eos": False, "lm": False}, ValueError, "score_eos without a language model"),
        ({"num_beams": 2, "num_return_sequences": 3}, ValueError, "num_return_sequences"),
        ({"num_beams": 2, "low_memory": True}, ValueError, "low_memory"),
        ({"prompt_lookup_num_tokens": 3}, ValueError, "assisted generation isn't supported"),
        ({"decoder_input_ids": torch.full((2, 64), 2), "max_new_tokens": 3}, ValueError, "64 tokens, which leaves no room"),
    ):
        with pytest.raises(error, match=message):
            family.model.generate(**{**family.inputs, **settings}, custom_generate=seq2seq_generate)
    with pytest.raises(ValueError, match="assisted generation isn't supported"):
        alone = {"input_features": family.inputs["input_features"][:1]}
        family.model.generate(**alone, assistant_model=family.model, custom_generate=seq2seq_generate, lm=lm)
    prepared = {"input_ids": torch.tensor([[2], [2]]), "generation_config": family.model.generation_config}
    with pytest.raises(ValueError, match="synced_gpus"):
        seq2seq_generate(family.model, **prepared, synced_gpus=True)
    with pytest.raises(ValueError, match="call this strategy as"):
        seq2seq_generate(family.model, prepared["input_ids"])
    family.model.__class__ = type("Own", (type(family.model),), {"_sample": lambda self, *args, **kwargs: None})
    with pytest.raises(ValueError, match=r"Own has its own generation loop \(_sample\)"):
        family.model.generate(**family.inputs, custom_generate=seq2seq_generate, lm=lm)


@pytest.mark.skipif(not TRANSDUCERS, reason="this Transformers has no transducers")
def test_each_strategy_is_for_its_own_models(lm):
    model, family = tiny_model(*TRANSDUCERS[0], layers=1, seed=0), silenced(FAMILIES["whisper"])
    features = {"input_features": torch.randn(1, 200, 8), "attention_mask": torch.ones(1, 200, dtype=torch.int64)}
    with pytest.raises(ValueError, match=r"is a transducer; pass .*transducer_generate"):
        model.generate(**features, custom_generate=seq2seq_generate, lm=lm)
    with pytest.raises(ValueError, match="isn't a transducer"):
        family.model.generate(**family.inputs, custom_generate=transducer_generate, lm=lm, suppress_tokens=None)


def test_an_lm_as_strong_as_it_gets():
    family = silenced(FAMILIES["moonshine"])
    family.model.generation_config.no_repeat_ngram_size = None
    family.model.generation_config.suppress_tokens += [34, 35]
    family.model.generation_config.max_new_tokens = 7  # one more would be a loop
    for num_beams in (1, 3):
        rows = strategy(family, [favouring(5), favouring(6)], torch.tensor([20.0, 15.0]), num_beams=num_beams).tolist()
        assert [set(row) & set(TEXT) for row in rows] == [{5}, {6}]


@pytest.mark.parametrize("classes", [1, 7, 127, 128, 129, 5000])
def test_the_best_tokens_of_a_row(classes):
    scores = torch.randn(3, classes, generator=torch.Generator().manual_seed(classes))
    for count in {1, min(6, classes)}:
        values, tokens = torch.topk(scores, count)
        found = best_tokens(scores, count)
        assert torch.equal(found[0], values) and torch.equal(found[1], tokens)
    scores[0, 1:], scores[1] = -math.inf, math.nan
    values, _ = best_tokens(scores, min(2, classes))
    assert values[0].tolist() == [scores[0, 0], -math.inf][: min(2, classes)] and (values[1] == -math.inf).all()
