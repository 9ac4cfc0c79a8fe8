"""Whatever the scores, a call with a language model ends, and its windows consume something."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from speech_models import FAMILIES, MEL, TEXT
from test_logits_processor import silenced, trained
from test_whisper import TIMESTAMPS, long, plain
from transformers import LogitsProcessor

from hf_ngpulm import NGramLM, NGramLogitsProcessor
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.generation.runaways import before_running_away, runs_away

END = 28
SEARCHES = {"greedy": {}, "beams": {"num_beams": 3}, "sampling": {"do_sample": True, "temperature": 1.5}}
WAYS = ("processor", "strategy")


class Wanted(LogitsProcessor):
    """A model that gives logits that follow from the last token."""

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, input_ids, scores):
        logits = self.logits[input_ids[:, -1]]
        possible = scores > -math.inf
        return torch.where(possible, logits.log_softmax(-1).to(scores), scores)


def generate(way, family, lm, weight, others=(), tokenizer=None, **given):
    torch.manual_seed(0)
    given = {**family.inputs, **given}
    if way == "strategy":
        given |= {"custom_generate": seq2seq_generate, "lm": lm, "lm_weight": weight, "processor": tokenizer}
        return family.model.generate(**given, logits_processor=list(others))
    ours = NGramLogitsProcessor(lm, weight, model=family.model, tokenizer=tokenizer)
    return family.model.generate(**given, logits_processor=[*others, ours])


def hating_text(vocab_size=28):
    """An LM that knows nothing of what the model says, and finds all of it impossible."""
    return NGramLM.train([[0, 1]] * 50, vocab_size=vocab_size, order=3)


def logits_of(**groups):
    logits = torch.full((91,), -20.0)
    for tokens, value in groups.values():
        logits[tokens] = value
    return logits


def wanting(family, change):
    """The same family with other logits, before any processor."""
    family.model.proj_out.register_forward_hook(lambda module, inputs, logits: change(logits))
    return family


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("weight", [0.3, 30.0])
def test_no_timestamps_where_there_are_to_be_none(weight, search, way):
    logits = logits_of(text=(list(TEXT), 0.0), times=(list(TIMESTAMPS), 3.0), end=([END], -5.0))
    family = wanting(plain(), logits.expand_as)
    said = set(generate(way, family, hating_text(), weight, **SEARCHES[search]).flatten().tolist())
    assert said & set(TEXT) and not said & set(TIMESTAMPS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("search", SEARCHES)
def test_timestamps_become_no_likelier(search, way):
    """What the LM finds dear makes way for no timestamps: where the model prefers text, text is said."""
    texts = -0.2 * torch.arange(len(TEXT))
    logits = logits_of(text=(list(TEXT), texts), times=(list(TIMESTAMPS), -9.0), end=([END], -90.0))
    said = generate(way, wanting(plain(), logits.expand_as), hating_text(), 3.0, return_timestamps=True, **SEARCHES[search])
    for row in said.tolist():
        assert len(set(row) & set(TIMESTAMPS)) <= 1 and len([token for token in row if token in TEXT]) >= 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("search", SEARCHES)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1.0, 8.0, 40.0]), weight=st.sampled_from([0.3, 2.0, 50.0]))
@settings(deadline=None, max_examples=3, suppress_health_check=list(HealthCheck))
def test_long_recordings_end_whatever_the_scores(way, search, seed, scale, weight):
    noise = scale * torch.randn(91, generator=torch.Generator().manual_seed(seed))
    family = wanting(long(plain(), [MEL + 30, MEL + 10], return_timestamps=True), lambda logits: scale * logits + noise)
    lm, seeks = hating_text() if seed % 2 else trained(seed), []
    generate(way, family, lm, weight, monitor_progress=lambda done: seeks.append(done.tolist()), **SEARCHES[search])
    for row in range(2):
        sought = [step[row][0] for step in seeks if step[row][0] < step[row][1]]
        assert all(before < after for before, after in pairwise(sought))


def test_a_window_that_ends_where_it_began_counts_as_consumed():
    family = plain()
    NGramLogitsProcessor(hating_text(), model=family.model)
    sequence = torch.tensor([40, 40, 40])
    given = {
        "seek_sequence": sequence, "seek_outputs": [sequence], "time_offset": torch.zeros(1), "timestamp_begin": 40,
        "seek_num_frames": torch.tensor([MEL]), "time_precision": 0.02, "time_precision_features": 0.01, "input_stride": 2,
        "prev_idx": 0, "idx": 0, "return_token_timestamps": False, "decoder_input_ids": torch.zeros(1, 4),
    }  # fmt: skip
    assert type(family.model)._retrieve_segment(**given)[1] == 0
    assert family.model._retrieve_segment(**given)[1] == MEL


def test_control_tokens_become_no_likelier():
    """Of any family: in no step has an LM a control token chosen where the model chose text, nor makes it likelier."""
    for name in FAMILIES:
        family = FAMILIES[name]()
        processor = NGramLogitsProcessor(hating_text(), 5.0, model=family.model, **(family.settings or {}))
        roles = processor.roles(91 if name == "whisper" else 40, torch.device("cpu"))[0]
        control = roles.unscored.tolist()
        prompt = torch.tensor([[29, 30, 31, 9, 10]] * 200)
        for seed in range(3):
            scores = 3 * torch.randn(200, roles.roles.numel(), generator=torch.Generator().manual_seed(seed))
            fused = processor(prompt, scores.clone())
            before, after = torch.softmax(scores, 1), torch.softmax(fused, 1)
            assert (after[:, control] <= before[:, control] + 1e-5).all(), name
            chose_text = ~torch.isin(scores.argmax(1), roles.unscored)
            assert chose_text.any() and not torch.isin(fused.argmax(1)[chose_text], roles.unscored).any(), name


@pytest.mark.parametrize("end_is", ["likely", "sure"])
def test_an_lm_makes_no_transcript_empty_and_vetoes_no_sure_end(end_is):
    family = FAMILIES["speecht5"]()
    ends_at_once = NGramLM.train([[4]] * 3 + [[]] * 50, vocab_size=28, order=3)
    never_ends = NGramLM.train([[4, 5, 6, 7] * 50], vocab_size=28, order=3)
    scores = torch.full((1, 40), -9.0)
    scores[0, 2], scores[0, 5] = (0.0, 0.5) if end_is == "likely" else (0.5, 0.0)
    for lm in (ends_at_once, never_ends):
        fused = NGramLogitsProcessor(lm, 20.0, model=family.model)
        assert (int(fused(torch.tensor([[2]]), scores.clone()).argmax()) == 2) == (end_is == "sure")
        later = fused(torch.tensor([[2, 4, 5, 6, 7]]), scores.clone())
        if end_is == "sure":
            assert later[0].softmax(0)[2] >= scores[0].softmax(0)[2] - 1e-6


def a_loop():
    """A model that says 5 6 7 and would end, were it not for an LM that loves to begin anew."""
    logits = torch.full((40, 40), -30.0)
    for token in range(40):
        logits[token, 5] = 0.0
    logits[5, 6], logits[6, 7], logits[5, 5], logits[6, 5] = 9.0, 9.0, -30.0, -30.0
    logits[7, 2], logits[7, 5] = 1.0, 0.9
    return logits, NGramLM.train([[5, 6, 7] * 60] * 5, vocab_size=28, order=3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_lm_keeps_no_loop_going(num_beams, way):
    family = silenced(FAMILIES["speecht5"])
    config = family.model.generation_config
    config.no_repeat_ngram_size, config.max_new_tokens = None, 60
    logits, lm = a_loop()
    without = family.model.generate(**family.inputs, logits_processor=[Wanted(logits)], num_beams=num_beams)
    with_lm = generate(way, family, lm, 3.0, [Wanted(logits)], num_beams=num_beams)
    for row in (*without.tolist(), *with_lm.tolist()):
        assert 2 in row[1:] and [token for token in row if token in TEXT].count(5) <= 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("search", SEARCHES)
def test_a_loop_without_a_way_out_is_ended(search, way):
    """Once an LM has led a model there."""
    family = silenced(FAMILIES["speecht5"])
    config = family.model.generation_config
    config.no_repeat_ngram_size, config.max_new_tokens = None, 100
    logits = torch.full((40, 40), -30.0)
    logits[:, 9], logits[:, 8] = 0.0, -0.5
    logits[9, 2], logits[8, 8] = 5.0, 30.0
    lm = NGramLM.train([[8] * 50], vocab_size=28, order=2)
    said = generate(way, family, lm, 20.0, [Wanted(logits)], **SEARCHES[search] | {"temperature": 1.0})
    assert said.shape[1] < 30 and all(2 in row[1:] for row in said.tolist())


class Marks:
    """A tokenizer with a full stop, token 27."""

    all_special_ids = (0, 1, 2, 3)
    added_tokens_decoder = dict.fromkeys(range(28, 40))

    def __len__(self):
        return 40

    def get_vocab(self):
        return {self.convert_ids_to_tokens(token): token for token in range(40)}

    def convert_ids_to_tokens(self, token):
        return "." if token == 27 else f"a{token}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_beams", [1, 5])
def test_a_full_stop_that_the_lm_has_never_seen_keeps_nobody_from_ending(num_beams, way):
    """Transcripts without an LM end in one; the LM passes over it, and knows that a sentence ends before it."""
    family = silenced(FAMILIES["speecht5"])
    config = family.model.generation_config
    config.no_repeat_ngram_size, config.max_new_tokens = None, 60
    logits = torch.full((40, 40), -12.0)
    logits[:, 5], logits[5, 6], logits[6, 7] = 5.0, 10.0, 10.0
    logits[7, 27], logits[7, 5], logits[27, 2], logits[27, 5] = 8.0, 3.0, 8.0, 3.0
    lm = NGramLM.train([[5, 6, 7]] * 20 + [[5, 6, 7, 5, 6, 7]] * 5, vocab_size=28, order=3)
    for weight in (0.3, 3.0):
        said = generate(way, family, lm, weight, [Wanted(logits)], Marks(), num_beams=num_beams)
        assert [[token for token in row if token > 3] for row in said.tolist()] == [[5, 6, 7, 27]] * len(said)


def test_transcripts_that_run_away():
    assert runs_away(["and", "sweetener"] * 4) and runs_away(["a", "latte", *["with", "all", "the", "milk"] * 4, "please"])
    assert before_running_away([1, 2, *[3, 4] * 9]) == [1, 2, 3, 4] and before_running_away([3] * 9) == [3]
    assert before_running_away([1, *[2, 3, 4] * 5, 2]) == [1, 2, 3, 4]
    for whole in ([1] * 7, [1, 2, 3] * 3, [*[3, 4] * 9, 1], []):
        assert before_running_away(whole) == whole
    assert not runs_away(["no"] * 7) and not runs_away(["a", "b", "c"] * 3) and not runs_away([])
