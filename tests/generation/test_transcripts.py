"""What is text to a model, and where its transcript begins: from its configs, its tokenizer, or the LM's own pieces."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from letters import Letters
from speech_models import FAMILIES

from hf_ngpulm import NGramLM
from hf_ngpulm.generation.transcripts import num_classes, roles_of
from hf_ngpulm.search.attention_step import END, HOLD, KINDS, START, TEXT

PIECES = ["a", "b", "</s>", "<|en|>", "<|1.25|>", "|", "<|said|>"]


class Tokenizer(Letters):
    all_special_ids = (2, 3, 5)
    word_delimiter_token_id = 5
    added_tokens_decoder = dict.fromkeys([4])

    def convert_ids_to_tokens(self, token):
        return self.pieces[token]


@pytest.fixture(scope="module")
def lm():
    """`<|said|>` has been said, `<|en|>` and the timestamp haven't."""
    lm = NGramLM.train([[0, 1, 5, 6]] * 3, vocab_size=7, order=2)
    lm.pieces = tuple(PIECES)
    return lm


def model_of(**settings):
    config = SimpleNamespace(model_type="some", is_encoder_decoder=True, eos_token_id=2, **settings)
    return SimpleNamespace(config=config, generation_config=SimpleNamespace())


def kinds(roles):
    return {kind: torch.nonzero(roles.roles & KINDS == kind)[:, 0].tolist() for kind in (TEXT, END)}


def marks(roles, mark):
    return torch.nonzero(roles.roles & mark)[:, 0].tolist()


def test_without_a_tokenizer_the_pieces_tell(lm):
    roles = roles_of(model_of(decoder_start_token_id=7, pad_token_id=8), [lm], 9)
    assert kinds(roles) == {TEXT: [0, 1, 5, 6], END: [2]}
    assert marks(roles, START) == [2, 3, 7] and not roles.holds


def test_with_a_tokenizer_it_tells(lm):
    """The token between words is among its special ones in Transformers 5, but text."""
    roles = roles_of(model_of(), [lm], 7, Tokenizer(PIECES))
    assert kinds(roles) == {TEXT: [0, 1, 5, 6], END: [2]}
    assert marks(roles, START) == [2, 3]


def test_a_start_of_ones_own(lm):
    roles = roles_of(model_of(audio_token_id=8), [lm], 9, start=[7])
    assert marks(roles, START) == [7] and marks(roles, HOLD) == [8] and roles.holds


def test_the_context_may_count(lm):
    roles = roles_of(model_of(decoder_start_token_id=7), [lm], 9, prompt_context=True)
    assert marks(roles, START) == [7]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_tells_its_size(name):
    family = FAMILIES[name]()
    assert num_classes(family.model) == (91 if name == "whisper" else 40)
