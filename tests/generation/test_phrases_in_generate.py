"""Phrases in `generate` of attention decoders: by logits processor and by strategy, one context per recording."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoTokenizer,
    Speech2TextConfig,
    Speech2TextForConditionalGeneration,
)

from hf_ngpulm import NGramLM, NGramLogitsProcessor, PhraseBooster
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.generation import seq2seq_generate

CLASSES = 260
CONTEXTS = [["call anna", "new york"], None, [("what", 3.0), "the day"]]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Speech2TextConfig(
        vocab_size=CLASSES, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, input_feat_per_channel=8, max_source_positions=300,
        max_target_positions=300, pad_token_id=256, bos_token_id=257, eos_token_id=258, decoder_start_token_id=258,
    )  # fmt: skip
    made = Speech2TextForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.6)
        made.lm_head.weight[256:].zero_()
    return made


def inputs(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, 40, 8, generator=generator)
    return {"input_features": features, "attention_mask": torch.ones(rows, 40, dtype=torch.int64), "max_new_tokens": 12}


def earned(context, tokenizer, tokens):
    """What phrases have earned after some tokens, and whether the transcript has ended."""
    if not context:
        return 0.0
    booster = PhraseBooster(context, tokenizer)
    text = [token for token in tokens if token < 256]
    ended = 258 in tokens
    return float(booster.score_sequences(torch.tensor([text], dtype=torch.int64), eos=ended))


@pytest.mark.parametrize("with_lm", [True, False])
def test_scores_are_those_of_the_definition(model, tokenizer, lm, with_lm):
    """Step by step, what the processor adds to the logits is what the tokens so far and the next earn."""
    processor = NGramLogitsProcessor(
        lm if with_lm else None, 0.3, model=model, phrases=CONTEXTS, phrase_weight=1.5, tokenizer=tokenizer, unscored="none",
        normalise_phrases=False,
    )  # fmt: skip
    without = NGramLogitsProcessor(lm, 0.3, model=model, tokenizer=tokenizer, unscored="none") if with_lm else None
    texts = ["call anna", "new", "what the"]
    for cut in range(4):
        rows = [[258, *tokenizer(text, add_special_tokens=False)["input_ids"]][: cut + 1] for text in texts]
        ids = torch.full((3, max(map(len, rows))), 256)
        for row, tokens in zip(ids, rows):
            row[: len(tokens)] = torch.tensor(tokens)
        added = processor(ids, torch.zeros(3, CLASSES))
        if without is not None:
            added = added - without(ids, torch.zeros(3, CLASSES))
        for row, context in enumerate(CONTEXTS):
            so_far = rows[row][1:]
            before = earned(context, tokenizer, so_far)
            for token in (*range(0, 256, 7), *tokenizer("new york anna what", add_special_tokens=False)["input_ids"], 258):
                expected = 1.5 * (earned(context, tokenizer, [*so_far, token]) - before)
                assert float(added[row, token]) == pytest.approx(expected, abs=1e-4), (row, token)
            assert float(added[row, 257]) == float(added[row, 259]) == 0.0


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("do_sample", [False, True])
def test_bonuses_that_shift_probability_are_those_of_generates_own_normalisation(model, tokenizer, num_beams, do_sample):
    kwargs = {"num_beams": num_beams, "do_sample": do_sample, "output_scores": True, "return_dict_in_generate": True}
    settings = {"model": model, "phrases": CONTEXTS, "phrase_weight": 25.0, "tokenizer": tokenizer}

    def decoded(normalise, **more):
        torch.manual_seed(0)
        processor = NGramLogitsProcessor(**settings, normalise_phrases=normalise)
        return model.generate(**inputs(3), **kwargs, **more, logits_processor=[processor])

    shifted, expected, added = decoded(True), decoded(False, renormalize_logits=True), decoded(False)
    assert torch.equal(shifted.sequences, expected.sequences)
    assert torch.equal(shifted.sequences, added.sequences) == (num_beams == 1)
    for scores, others in zip(shifted.scores, expected.scores, strict=True):
        torch.testing.assert_close(torch.log_softmax(scores, 1), others, rtol=1e-4, atol=1e-3)
    if num_beams > 1 and not do_sample:  # log-probabilities came in, and come out (drawing looks at the best 50 only)
        torch.testing.assert_close(shifted.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-3)
        assert not torch.allclose(shifted.sequences_scores, added.sequences_scores, atol=1.0)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("with_lm", [True, False])
def test_each_recording_has_its_own(model, tokenizer, lm, num_beams, with_lm):
    kwargs = {"num_beams": num_beams, "do_sample": False}
    settings = {"lm": lm if with_lm else None, "phrase_weight": 25.0, "tokenizer": tokenizer, "model": model}
    together = inputs(3)
    processor = NGramLogitsProcessor(**settings, phrases=CONTEXTS)
    found = model.generate(**together, **kwargs, logits_processor=[processor])
    strategy = model.generate(
        **together, **kwargs, custom_generate=seq2seq_generate, lm=lm if with_lm else False, phrases=CONTEXTS,
        phrase_weight=25.0, processor=tokenizer,
    )  # fmt: skip
    assert torch.equal(found, strategy)
    plain = model.generate(**together, **kwargs, logits_processor=[processor.with_phrases([])])
    assert not torch.equal(plain[0], found[0])
    for row, context in enumerate(CONTEXTS):
        one = {name: part[row : row + 1] if isinstance(part, torch.Tensor) else part for name, part in together.items()}
        if context is None and not with_lm:
            alone = model.generate(**one, **kwargs)
        else:
            alone = model.generate(**one, **kwargs, logits_processor=[NGramLogitsProcessor(**settings, phrases=[context])])
        length = alone.shape[1]
        assert torch.equal(alone[0], found[row, :length]) and bool((found[row, length:] == 256).all())


def test_what_is_refused(model, tokenizer, lm):
    with pytest.raises(ValueError, match="neither a language model nor phrases"):
        NGramLogitsProcessor(model=model)
    with pytest.raises(ValueError, match="need a tokenizer"):
        NGramLogitsProcessor(lm, model=model, phrases=["anna"])
    with pytest.raises(ValueError, match="lm 2, phrases 3"):
        NGramLogitsProcessor([lm, None], model=model, phrases=CONTEXTS, tokenizer=tokenizer)(
            torch.tensor([[258]] * 3), torch.zeros(3, CLASSES)
        )
    processor = NGramLogitsProcessor(model=model, phrases=CONTEXTS, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="phrases lists 3 recordings"):
        model.generate(**inputs(2), logits_processor=[processor])
    for refused in (
        lambda: processor.with_weights(ilm_weight=0.3),
        lambda: NGramLogitsProcessor(model=model, phrases=CONTEXTS, tokenizer=tokenizer, ilm_weight=0.3),
    ):
        with pytest.raises(ValueError, match="ilm_weight is given without a language model"):
            refused()
    with pytest.raises(ValueError, match="phrase_weight without phrases"):
        model.generate(**inputs(2), custom_generate=seq2seq_generate, phrase_weight=1.0)
    with pytest.raises(ValueError, match="normalise_phrases=False is given without phrases"):
        NGramLogitsProcessor(lm, model=model, normalise_phrases=False)
    with pytest.raises(ValueError, match="normalise_phrases without phrases"):
        model.generate(**inputs(1), custom_generate=seq2seq_generate, lm=lm, normalise_phrases=True, processor=tokenizer)
    with pytest.raises(ValueError, match="unscored without a language model"):
        model.generate(**inputs(1), custom_generate=seq2seq_generate, phrases=["anna"], unscored="none", processor=tokenizer)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_beside_an_internal_lm(num_beams, model, lm, tokenizer):
    """Phrases are added as ever, after what is subtracted from the rest."""
    settings = {"ilm_weight": 0.3, "phrases": CONTEXTS, "phrase_weight": 1.5, "start": 258}
    given = {**inputs(3), "num_beams": num_beams}
    processor = NGramLogitsProcessor(lm, 0.4, model=model, tokenizer=tokenizer, **settings)
    found = model.generate(**given, logits_processor=[processor])
    ours = {"custom_generate": seq2seq_generate, "processor": tokenizer, "lm": lm, "lm_weight": 0.4, **settings}
    assert torch.equal(model.generate(**given, **ours), found)
    assert not torch.equal(model.generate(**given, **{**ours, "ilm_weight": 0.0}), found)
    for more, name in (({"ilm_weight": 0.3}, "ilm_weight"), ({"source_lm": lm}, "source_lm")):
        with pytest.raises(ValueError, match=f"{name} is given without a language model"):
            NGramLogitsProcessor(model=model, phrases=["anna"], tokenizer=tokenizer, start=258, **more)
