"""A rescorer over the beams of encoder-decoders, at the end and during the search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.causal_lms import causal_lm, letters_tokenizer
from support.speech_models import whisper_parts
from test_second_pass import CLIPS, model_of
from transformers import LogitsProcessor, pipeline

from hf_ngpulm import Rescorer
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.generation.runaways import before_running_away, runs_away

WEIGHT, BONUS, MOST = 0.7, 1.5, 12
SETTINGS = {"rescorer_weight": WEIGHT, "word_bonus": BONUS}


def rescorer(end="\n"):
    return Rescorer(causal_lm(), letters_tokenizer(), end=end)


@pytest.fixture(scope="module")
def canary():
    return model_of("canary")


@pytest.fixture(scope="module")
def features(canary):
    return canary.feature_extractor(CLIPS, sampling_rate=16000, return_tensors="pt")


def generated(canary, features, beams, **more):
    given = {"num_beams": beams, "max_new_tokens": MOST, "return_dict_in_generate": True, "output_scores": True} | more
    given = {"processor": canary.tokenizer, **given}
    return canary.model.generate(**features, custom_generate=seq2seq_generate, **given)


def ended(canary, row):
    """The generated tokens of a row, with their end."""
    tokens = row.tolist()[-MOST:] if len(row) >= MOST else row.tolist()
    end = canary.model.generation_config.eos_token_id
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def prompt_length(canary, features):
    return len(canary.model.generate(**features, max_new_tokens=1)[0]) - 1


def found_in(canary, features, out, beams):
    """Tokens and first-pass sums of the real hypotheses of each recording, as they are ranked."""
    first, lists = prompt_length(canary, features), []
    for row, (tokens, score, places) in enumerate(zip(out.sequences, out.sequences_scores.tolist(), out.beam_indices)):
        length = int((places >= 0).sum())
        if row % beams == 0:
            lists.append({})
        if score > -1e8:
            lists[-1][tuple(tokens[first : first + length].tolist())] = score * length
    return lists


@pytest.mark.parametrize("weight, bonus", [(0.0, 0.0), (1.0, 0.0), (1.0, 5.0)])
def test_beams_are_ranked_by_the_sum(canary, features, weight, bonus):
    plain = generated(canary, features, 4, num_return_sequences=4)
    settings = {"rescorer": rescorer(), "rescorer_weight": weight, "word_bonus": bonus}
    ours = generated(canary, features, 4, num_return_sequences=4, **settings)
    for mine, theirs in zip(found_in(canary, features, ours, 4), found_in(canary, features, plain, 4)):
        assert mine == pytest.approx(theirs)
        texts = {ids: canary.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in theirs}
        added = {ids: weight * rescorer().score(text) + bonus * len(text.split()) for ids, text in texts.items()}
        assert list(mine) == sorted(theirs, key=lambda ids: -(theirs[ids] + added[ids]) / len(ids))
    first = generated(canary, features, 4, return_dict_in_generate=False, output_scores=False, **settings)
    assert [ended(canary, row) for row in first] == [ended(canary, row) for row in ours.sequences[::4]]


class Only(LogitsProcessor):
    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, input_ids, scores):
        ruled_out = torch.ones_like(scores, dtype=torch.bool)
        ruled_out[:, self.tokens] = False
        return scores.masked_fill(ruled_out, -torch.inf)


def test_with_every_hypothesis_kept_it_equals_rescoring_the_list(canary, features):
    pieces = [canary.tokenizer.convert_tokens_to_ids(piece) for piece in ("▁the", "s")]
    few = Only([*pieces, canary.model.generation_config.eos_token_id])
    more = {"logits_processor": [few], "max_new_tokens": 4, "num_return_sequences": 40, "rescorer": rescorer(), **SETTINGS}
    listed, delayed = (generated(canary, features, 40, **more, rescorer_every=every) for every in (None, "word"))
    for ours, theirs in zip(*(found_in(canary, features, out, 40) for out in (delayed, listed))):
        assert len(theirs) == 31
        assert ours == pytest.approx(theirs, abs=1e-3) and list(ours) == list(theirs)
    assert torch.allclose(delayed.scores[3][:1], listed.scores[3][:1]) or len(delayed.scores) == 4


def plain_search(canary, features, beams, scorer):
    """The definition: beam search over the tokens of one recording, whose scores and shares are kept apart."""
    model, end = canary.model, canary.model.generation_config.eos_token_id
    prompt = model.generate(**features, max_new_tokens=1)[:, :-1]
    encoded = model.get_encoder()(**features)
    running, finished = {(): (0.0, 0.0)}, {}
    for step in range(MOST):
        texts = {ids: canary.tokenizer.decode(ids, skip_special_tokens=True).split()[:-1] for ids in running}
        texts = {ids: before_running_away(words) for ids, words in texts.items()}
        scores = {ids: scorer.scores([[" ".join(words)]])[0][0] for ids, words in texts.items()}
        average = sum(scores.values()) / max(1, sum(map(len, texts.values())))
        ways = []
        for ids, (score, _) in running.items():
            count = len(texts[ids])
            share = WEIGHT * (scores[ids] - average * count) + BONUS * count
            given = torch.cat([prompt, torch.tensor([ids], dtype=torch.int64)], 1)
            logits = model(
                encoder_outputs=encoded, attention_mask=features.get("attention_mask"), decoder_input_ids=given
            ).logits
            for token, log_prob in enumerate(logits[0, -1].log_softmax(-1).tolist()):
                ways.append(((*ids, token), score + log_prob, share))
        ways.sort(key=lambda way: -way[1] - way[2])
        done = [way for way in ways[:beams] if way[0][-1] == end or step + 1 == MOST]
        finished |= {ids: (score, (score + share) / len(ids)) for ids, score, share in done}
        finished = dict(sorted(finished.items(), key=lambda item: -item[1][1])[:beams])
        going = [way for way in ways if way[0][-1] != end][:beams]
        running = {ids: (score, share) for ids, score, share in going}
        best = max(score + share for score, share in running.values()) / (step + 1)
        if len(finished) == beams and best < min(rank for _, rank in finished.values()):
            break
    return {ids: score for ids, (score, _) in finished.items()}


@torch.no_grad()
def test_the_search_is_that_of_the_definition(canary):
    features = canary.feature_extractor(CLIPS[:1], sampling_rate=16000, return_tensors="pt")
    more = {"num_return_sequences": 3, "rescorer": rescorer(), **SETTINGS}
    right = plain_search(canary, features, 3, rescorer(end=""))
    out = generated(canary, features, 3, rescorer_every="word", **more)
    assert found_in(canary, features, out, 3)[0] == pytest.approx(right, abs=2e-3)
    assert set(right) != set(found_in(canary, features, generated(canary, features, 3, **more), 3)[0])


class Looping(LogitsProcessor):
    """A model that would rather end, but repeats a word without end at little cost."""

    def __init__(self, word, end):
        self.word, self.end = word, end

    def __call__(self, input_ids, scores):
        changed = torch.full_like(scores, -9.0)
        changed[:, self.word], changed[:, self.end] = -0.7, -0.4
        return changed


def test_bonuses_keep_no_loop_going(canary, features):
    word, end = canary.tokenizer.convert_tokens_to_ids("▁the"), canary.model.generation_config.eos_token_id
    settings = {"rescorer": rescorer(), "rescorer_weight": 0.1, "word_bonus": 2.0, "length_penalty": 0.0, "max_new_tokens": 60}
    for every in (None, "word"):
        out = generated(canary, features, 3, rescorer_every=every, logits_processor=[Looping(word, end)], **settings)
        for row in out.sequences:
            assert not runs_away([token for token in row.tolist() if token == word])


def test_a_row_is_as_it_is_alone(canary):
    texts = []
    for batch in ([[clip] for clip in CLIPS], [CLIPS]):
        settings = {"num_beams": 3, "rescorer": rescorer(), "rescorer_every": "word", **SETTINGS}
        texts.append([result["text"] for clips in batch for result in canary(clips, batch_size=2, **settings)])
    assert texts[0] == texts[1]


def test_weights_of_recordings(canary, features):
    more = {"rescorer": rescorer(), "rescorer_every": "word"}
    both = {"rescorer_weight": torch.tensor([0.0, WEIGHT]), "word_bonus": torch.tensor([0.0, BONUS])}
    ours = generated(canary, features, 3, **more, **both).sequences
    plain, fused = generated(canary, features, 3).sequences, generated(canary, features, 3, **more, **SETTINGS).sequences
    assert ended(canary, ours[0]) == ended(canary, plain[0]) and ended(canary, ours[1]) == ended(canary, fused[1])
    with pytest.raises(ValueError, match="lists 3 recordings, but there are 2"):
        generated(canary, features, 3, **more, rescorer_weight=torch.zeros(3))


def test_what_has_no_effect_is_refused(canary, features):
    for wrong, message in (
        ({"num_beams": 1, "rescorer": rescorer()}, "one hypothesis only"),
        ({"word_bonus": 1.0}, "word_bonus given without rescorer="),
        ({"rescorer": rescorer(), "rescorer_every": 0.5}, "have no clock that could count seconds"),
        ({"rescorer": rescorer(), "rescorer_every": "word", "renormalize_logits": True}, "renormalize_logits=True would undo"),
        ({"rescorer": "gpt2"}, "rescorer should be a hf_ngpulm.Rescorer"),
        ({"rescorer": rescorer(), "processor": None}, "pass processor="),
    ):
        with pytest.raises(ValueError, match=message):
            generated(canary, features, **{"beams": 3} | {"beams" if k == "num_beams" else k: v for k, v in wrong.items()})


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    parts = whisper_parts(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    parts["model"].generation_config.suppress_tokens = [*range(29, 70)]  # most timestamps, to get letters
    return pipeline("automatic-speech-recognition", **parts)


@pytest.mark.parametrize("every", [None, "word"])
@pytest.mark.parametrize("seconds", [0.9, 1.7])
def test_whisper(whisper, seconds, every):
    """Each window has a list of its own."""
    generator = np.random.default_rng(0)
    clips = [generator.standard_normal(int(seconds * 16000)).astype(np.float32) for _ in range(2)]
    search = {"num_beams": 8, "max_new_tokens": 10} | ({"return_timestamps": True} if seconds > 1 else {})
    plain = [each["text"] for each in whisper([*clips], batch_size=2, **search)]
    for weight in (0.0, 20.0):
        more = {"rescorer": rescorer(), "rescorer_weight": weight, "rescorer_every": every, **search}
        found = [each["text"] for each in whisper([*clips], batch_size=2, **more)]
        assert found == [whisper(clip.copy(), **more)["text"] for clip in clips]
        assert (found == plain) == (weight == 0)
    with pytest.raises(ValueError, match="one hypothesis only"):
        whisper(clips[0], **search | {"num_beams": 1}, rescorer=rescorer())
