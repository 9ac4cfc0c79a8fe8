"""CTCDecoder: hypotheses, models per row, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from interpreted import needs_interpreter
from letters import Letters
from transformers import AutoTokenizer, Wav2Vec2CTCTokenizer

from hf_ngpulm import CTCDecoder, InvalidLogitsError, NGramLM, TokenizerMismatchError
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.fusion.fusion import Fusion
from hf_ngpulm.ngrams.table import NGramTable

BLANK = 256


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


def unigrams(vocab_size, favourite):
    """A model that likes one token and detests the others."""
    tokens = torch.arange(vocab_size + 3)[:, None]
    log_probs = torch.full((vocab_size + 3,), -20.0)
    log_probs[favourite] = -0.01
    return NGramLM.from_table(NGramTable.from_rows(vocab_size, [(tokens, log_probs, torch.zeros(vocab_size + 3))]))


def frames(*labels, classes=257, margin=2.0):
    """Logits whose best classes are the given ones."""
    logits = torch.zeros(1, len(labels), classes)
    for frame, label in enumerate(labels):
        logits[0, frame, label] = margin
    return logits


def random_logits(batch_size=4, frames=40, classes=257, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch_size, frames, classes, generator=generator)
    logits[..., BLANK] += 5 * torch.rand(batch_size, frames, generator=generator)
    return logits


def test_hypothesis_fields(tokenizer, lm):
    logits, lengths = random_logits(), torch.tensor([40, 0, 7, 39])
    decoder = CTCDecoder(tokenizer, lm, 0.7, num_beams=1)
    labels = decoder.label_frames(logits, lengths).labels
    log_probs = torch.log_softmax(logits, -1)
    results = decoder(logits, lengths)
    assert [len(n_best) for n_best in results] == [1] * 4
    for row, (best,) in enumerate(results):
        path = labels[row, : lengths[row]].tolist()
        begins = [t for t, label in enumerate(path) if label != BLANK and (t == 0 or path[t - 1] != label)]
        assert best.token_frames == begins
        assert best.token_ids == [path[t] for t in begins]
        assert best.text == tokenizer.decode(path)
        assert best.acoustic_score == pytest.approx(sum(float(log_probs[row, t, c]) for t, c in enumerate(path)), abs=1e-3)
        expected = lm.score_sequences(torch.tensor([best.token_ids or [-1]]), eos=False)
        assert best.lm_score == pytest.approx(float(expected[0]), abs=1e-3)
        assert best.score == pytest.approx(best.acoustic_score + 0.7 * best.lm_score, abs=1e-4)
    assert results[1][0].text == "" and results[1][0].score == 0.0


def test_without_lm_it_is_argmax(tokenizer):
    logits, lengths = random_logits(), torch.tensor([40, 3, 0, 20])
    for row, (best,) in enumerate(CTCDecoder(tokenizer)(logits, lengths)):
        assert best.text == tokenizer.decode(logits[row, : lengths[row]].argmax(-1))
        assert best.lm_score == 0.0 and best.score == best.acoustic_score


@pytest.mark.parametrize("with_lm", [True, False])
@pytest.mark.parametrize("first", [0, BLANK - 1])
def test_a_token_in_the_first_frame(tokenizer, lm, with_lm, first):
    """Whatever its id: also next to the blank's."""
    ((best,),) = CTCDecoder(tokenizer, lm if with_lm else None, 0.0)(frames(first, first, BLANK, 7))
    assert (best.token_ids, best.token_frames, best.token_ends) == ([first, 7], [0, 3], [2, 4])


def test_weight_zero_is_no_lm(tokenizer, lm):
    logits = random_logits()
    with_lm = CTCDecoder(tokenizer, lm, 0.0, num_beams=1)
    assert [h[0].text for h in with_lm(logits)] == [h[0].text for h in CTCDecoder(tokenizer)(logits)]


def test_numbers_of_numpy_are_numbers(tokenizer, lm):
    decoder = CTCDecoder(tokenizer, lm, np.float32(0.5), num_beams=np.int64(4), beta=np.float64(1.5))
    assert decoder(random_logits(2)) == CTCDecoder(tokenizer, lm, 0.5, num_beams=4, beta=1.5)(random_logits(2))


def test_one_model_and_weight_a_row(tokenizer, lm):
    models = [unigrams(256, 40), None, unigrams(256, 90), lm]
    weights = torch.tensor([1.0, 1.0, 0.5, 0.9])
    logits = random_logits()
    together = CTCDecoder(tokenizer, models, weights, num_beams=1)(logits)
    for row, model in enumerate(models):
        alone = CTCDecoder(tokenizer, model, float(weights[row]), num_beams=1)(logits[row : row + 1])
        assert together[row][0].token_ids == alone[0][0].token_ids
        assert together[row][0].score == pytest.approx(alone[0][0].score, abs=1e-4)
        assert together[row][0].lm_score == pytest.approx(alone[0][0].lm_score, abs=1e-3)
    assert together[1][0].lm_score == 0.0 and together[1][0].token_ids
    assert set(together[0][0].token_ids) == {40}
    assert 90 in together[2][0].token_ids


def test_a_negative_weight_turns_the_lm_against_a_token(tokenizer):
    logits = frames(5, BLANK, 7, margin=1.5)
    assert CTCDecoder(tokenizer, unigrams(256, 5), 1.0)(logits)[0][0].token_ids == [5, 5]
    assert 5 not in CTCDecoder(tokenizer, unigrams(256, 5), -1.0)(logits)[0][0].token_ids


def test_settings_that_need_care(tokenizer, lm):
    """A weight being trained, and a blank that isn't the padding token."""
    logits = random_logits(2)
    expected = CTCDecoder(tokenizer, lm, 0.5)(logits)
    assert CTCDecoder(tokenizer, lm, torch.full((2,), 0.5, requires_grad=True))(logits.requires_grad_()) == expected
    moved = frames(5, 260, 7, 7, classes=261)
    assert CTCDecoder(tokenizer, lm, 0.0, blank_id=260)(moved)[0][0].token_ids == [5, 7]
    assert CTCDecoder(tokenizer, blank_id=260)(moved)[0][0].token_frames == [0, 2]
    bare = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    bare.pad_token = None
    with pytest.raises(ValueError, match="blank_id"):
        CTCDecoder(bare)
    assert CTCDecoder(bare, blank_id=260)(moved)[0][0].token_ids == [5, 7]


def test_models_on_different_devices():
    models = [unigrams(9, 1), unigrams(9, 2)]
    assert Fusion(models, 1.0).rows(2, torch.device("meta")).tensors.arc_tokens.device.type == "meta"
    assert Fusion(models[0], 1.0).rows(2, torch.device("meta")).tensors.arc_tokens.device.type == "meta"
    assert [model.device.type for model in models] == ["cpu", "cpu"]


def test_an_lm_smaller_than_a_padded_vocabulary(tokenizer, lm):
    padded = torch.nn.functional.pad(random_logits(), (0, 63), value=-30.0)
    ours = CTCDecoder(tokenizer, lm, 0.7)(padded)
    assert [h[0].token_ids for h in ours] == [h[0].token_ids for h in CTCDecoder(tokenizer, lm, 0.7)(random_logits())]


def test_a_character_vocabulary_with_blank_0(tmp_path):
    pieces = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefg"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    characters = Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))
    lm = unigrams(len(pieces), pieces.index("b"))
    logits = frames(5, 0, 6, 4, 0, 7, classes=len(pieces), margin=5.0)
    assert CTCDecoder(characters, lm, 0.0)(logits)[0][0].text == "ab c"
    assert CTCDecoder(characters, lm, 1.0)(logits)[0][0].text.replace(" ", "") == "bbb"


def test_the_callers_model_stays_as_it_is(tokenizer, lm):
    other = unigrams(256, 4)
    before = {name: tensor.clone() for name, tensor in lm.named_buffers()}
    CTCDecoder(tokenizer, [lm, other], 0.5)(random_logits(2))
    for name, tensor in lm.named_buffers():
        assert torch.equal(tensor, before[name])


def test_an_empty_batch_and_no_frames(tokenizer, lm):
    assert CTCDecoder(tokenizer, lm)(torch.zeros(0, 5, 257)) == []
    assert CTCDecoder(tokenizer, lm)(torch.zeros(2, 0, 257))[1][0].text == ""
    assert CTCDecoder(tokenizer)(torch.zeros(2, 0, 257))[1][0].text == ""


@pytest.mark.parametrize("with_lm", [False, True])
def test_broken_logits(tokenizer, lm, with_lm):
    decoder = CTCDecoder(tokenizer, lm if with_lm else None)
    logits = random_logits()
    logits[2, 11, 3] = float("nan")
    with pytest.raises(InvalidLogitsError, match=r"row 2 .* frame 11"):
        decoder(logits)
    assert len(decoder(logits, torch.tensor([40, 40, 11, 40]))) == 4
    for wrong, message in (
        (torch.zeros(3, 257), r"\(3, 257\); of one utterance add a batch dimension: logits\[None\]"),
        (torch.zeros(1, 3, 257, dtype=torch.int64), "int64"),
        (torch.zeros(1, 3, 256), "256"),
    ):
        with pytest.raises(InvalidLogitsError, match=message):
            decoder(wrong)


@pytest.mark.parametrize("engine", ["reference", "cpu", pytest.param("gpu", marks=needs_interpreter)])
def test_what_scores_the_same_is_ranked_alike_by_every_engine(engine):
    decoder = CTCDecoder(Letters("abcdef", blank=6), num_beams=4, num_return_sequences=4, engine=engine)
    n_best = decoder(torch.zeros(1, 1, 7), torch.tensor([1]))[0]  # whose one frame would else be padding
    assert [hypothesis.text for hypothesis in n_best] == ["", "a", "b", "c"]
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0], [-9.0] * 6 + [9.0]]])
    assert [hypothesis.text for hypothesis in decoder(logits)[0]] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([40, 41, 1, 1], r"0\.\.40.*1\.\.41"), ([-1, 4, 4, 4], "-1"), ([4, 4], "4 integers"), ([1.0, 2.0, 3.0, 4.0], "float")],
)
def test_wrong_lengths(tokenizer, lm, lengths, message):
    with pytest.raises(ValueError, match=message):
        CTCDecoder(tokenizer, lm)(random_logits(), torch.tensor(lengths))


def test_wrong_settings(tokenizer, lm):
    for arguments, message in (
        ({"repeats": "never"}, "never"),
        ({"lm_weight": float("nan")}, "nan"),
        ({"lm_weight": "heavy"}, "heavy"),
        ({"lm_weight": 1e300}, "1e.300"),
        ({"lm_weight": torch.tensor([1.0, -1e300], dtype=torch.float64)}, "e.300"),
        ({"lm_weight": torch.tensor([[1.0]])}, "lm_weight"),
        ({"lm": []}, "empty"),
        ({"lm": [lm, unigrams(99, 1)]}, "different sizes"),
        ({"blank_id": -1}, "blank_id"),
        ({"engine": "fast"}, "engine"),
    ):
        with pytest.raises(ValueError, match=message):
            CTCDecoder(tokenizer, **{"lm": lm, **arguments})
    with pytest.raises(ValueError, match="3 language models, the batch has 4"):
        CTCDecoder(tokenizer, [lm, lm, lm])(random_logits())
    with pytest.raises(ValueError, match="4 rows"):
        CTCDecoder(tokenizer, lm, torch.ones(3))(random_logits())
    for wrong, kind in (([b"lm.arpa"], "bytes"), (3, "int"), ({"lm": lm}, "dict"), ([[lm]], "list")):
        with pytest.raises(TypeError, match=f"should be an NGramLM .* got {kind}"):
            CTCDecoder(tokenizer, wrong)
    for wrong in ("lm.arpa", ["lm.arpa"]):
        with pytest.raises(FileNotFoundError, match=r"lm\.arpa: no such file"):
            CTCDecoder(tokenizer, wrong)


def test_a_tokenizer_that_is_not_the_lms(tokenizer, lm, tmp_path):
    pieces = ["<pad>", "<s>", "</s>", "<unk>", "|", *map(chr, range(0x100, 0x100 + 300))]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    with pytest.raises(TokenizerMismatchError, match="made for"):
        CTCDecoder(Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json")), lm)
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces[:30])}))
    with pytest.raises(TokenizerMismatchError, match="256 token ids"):
        CTCDecoder(Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json")), lm)
