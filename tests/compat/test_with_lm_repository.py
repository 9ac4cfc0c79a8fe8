"""Repos as a `Wav2Vec2ProcessorWithLM` saves them, in folders and on the Hub."""

import json
import logging
import math
import shutil

import numpy as np
import pytest
import torch
from hub_server import HubServer
from kenlm_files import unpack
from transformers import AutoTokenizer, Wav2Vec2CTCTokenizer, pipeline

from hf_ngpulm import CTCDecoder, NGramFormatError, NGramLM, TokenizerMismatchError
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.compat import LanguageModel, build_ctcdecoder
from hf_ngpulm.formats.wav2vec2.word_files import Attrs, charged_to_unknown_words
from hf_ngpulm.language_model.loading import load_language_model
from hf_ngpulm.lexicon.spellings import make_lexicon

TASK = "automatic-speech-recognition"
ATTRS = {"alpha": 0.5, "beta": 1.5, "unk_score_offset": -10.0, "score_boundary": True}


@pytest.fixture(scope="module")
def saved(labels, words_arpa, recogniser, tmp_path_factory):
    """A folder with a recogniser, and the decoder of its processor."""
    folder = tmp_path_factory.mktemp("saved") / "with-lm"
    for part in recogniser.values():
        part.save_pretrained(folder)
    build_ctcdecoder(labels, words_arpa, LanguageModel(words_arpa).words).save_to_dir(folder)
    return folder


@pytest.fixture
def repo(saved, tmp_path):
    """The same, to be changed."""
    return shutil.copytree(saved, tmp_path / "with-lm")


def change(repo, **attrs):
    (repo / "language_model" / "attrs.json").write_text(json.dumps(attrs))


def test_decodes_as_pyctcdecode_did(saved, golden, outputs, tokenizer):
    lm = NGramLM.from_wav2vec2_with_lm(saved)
    assert lm.config.defaults == {"lm_weight": 0.5, "beta": 0.0, "num_beams": 100, "beam_threshold": 10.0, "score_eos": True}
    assert lm.config.words.word_bonus == 3.0  # beta / alpha
    decoder = CTCDecoder(tokenizer, lm, **lm.config.defaults)
    for row, (theirs, logits) in enumerate(zip(golden.cases["defaults"]["beams"], outputs, strict=True)):
        best = decoder(torch.from_numpy(logits)[None])[0][0]
        assert best.text == theirs[0][0] or row % 2  # the others aren't clear
        assert best.score > theirs[0][3] - 1.0
        if best.text == theirs[0][0] and not row % 2:
            assert best.score - best.acoustic_score == pytest.approx(theirs[0][3] - theirs[0][2], abs=1e-3)


@pytest.mark.parametrize(
    "attrs",
    [
        ATTRS | {"alpha": 0.8, "unk_score_offset": -4.0},
        ATTRS | {"score_boundary": False},
        ATTRS | {"alpha": 0.0},
        ATTRS | {"beta": 0.0},
    ],
)
def test_other_weights(repo, labels, words_arpa, outputs, tokenizer, attrs):
    """What the decoder of `hf_ngpulm.compat` finds with them, which is held to pyctcdecode."""
    change(repo, **attrs)
    lm = NGramLM.from_wav2vec2_with_lm(repo)
    decoder = CTCDecoder(tokenizer, lm, **lm.config.defaults)
    boundary = {"lm_score_boundary": attrs["score_boundary"]}
    other = build_ctcdecoder(labels, words_arpa, None, attrs["alpha"], attrs["beta"], attrs["unk_score_offset"], **boundary)
    if attrs["alpha"] == 0:
        other.reset_params(beta=0.0, unk_score_offset=0.0)
    for logits in outputs[::2]:
        best, expected = decoder(torch.from_numpy(logits)[None])[0][0], other.decode_beams(logits, token_min_logp=-50)[0]
        assert best.text == expected.text
        if attrs["score_boundary"]:
            assert best.score == pytest.approx(expected.lm_score, abs=0.1)


def test_in_a_pipeline(saved, recogniser, caplog, monkeypatch):
    """`lm=` alone: weights and beam are the repo's. What is given goes before them."""
    monkeypatch.setattr("hf_ngpulm.config.tuned._told", set())  # it is said once
    audio = np.random.default_rng(0).normal(size=16000).astype(np.float32)
    features = recogniser["feature_extractor"](audio, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    with torch.no_grad():
        logits = recogniser["model"](**features).logits
    lm = NGramLM.from_wav2vec2_with_lm(saved)

    def expected(**settings):
        return CTCDecoder(recogniser["tokenizer"], lm, **settings)(logits)[0][0].text

    with caplog.at_level(logging.WARNING):
        asr = pipeline(TASK, **recogniser, lm=str(saved))
    assert any("lm_weight=0.5, beta=0.0, num_beams=100" in record.getMessage() for record in caplog.records)
    assert asr(audio)["text"] == expected(**lm.config.defaults)
    assert asr(audio, num_beams=8)["text"] == expected(**(lm.config.defaults | {"num_beams": 8}))
    assert asr(audio, num_beams=1)["text"] == expected(lm_weight=0.5, num_beams=1)
    assert asr(audio, lm_weight=0.3, num_beams=8)["text"] == expected(lm_weight=0.3, num_beams=8, beta=0.0)
    assert asr(audio, return_timestamps="word")["chunks"]
    assert CTCDecoder(recogniser["tokenizer"], lm, num_beams=8).options.beta == 0.0  # words have a bonus already


def test_with_a_decoder_of_pyctcdecode_beside(saved, recogniser, labels, caplog):
    """Where pyctcdecode is installed, `pipeline` makes its decoder unasked."""
    audio = np.random.default_rng(0).normal(size=16000).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        asr = pipeline(TASK, **recogniser, decoder=build_ctcdecoder(labels), lm=str(saved))
    assert any("replaces the decoder of pyctcdecode" in record.getMessage() for record in caplog.records)
    assert asr(audio) == pipeline(TASK, **recogniser, lm=str(saved))(audio)


def test_saved_as_a_model_of_this_package(saved, tmp_path):
    lm = NGramLM.from_wav2vec2_with_lm(saved)
    lm.save_pretrained(tmp_path / "lm")
    again = load_language_model(tmp_path / "lm")
    assert again.config == lm.config and torch.equal(again.tensors.arc_weights, lm.tensors.arc_weights)
    config = json.loads((tmp_path / "lm" / "config.json").read_text())
    for bad, problem in (({}, "lm_weight"), ({"lm_weight": 1, "wizard": 2}, "wizard"), ({"lm_weight": "x"}, "lm_weight")):
        (tmp_path / "lm" / "config.json").write_text(json.dumps(config | {"defaults": bad}))
        with pytest.raises(NGramFormatError, match=problem):
            NGramLM.from_pretrained(tmp_path / "lm")


def test_wherever_a_language_model_is_asked_for(saved, tokenizer):
    assert load_language_model(saved, tokenizer).config.defaults["lm_weight"] == 0.5


def test_without_attrs(repo, caplog):
    (repo / "language_model" / "attrs.json").unlink()
    assert NGramLM.from_wav2vec2_with_lm(repo).config.defaults["lm_weight"] == 0.5
    assert any("pyctcdecode's defaults are taken" in record.getMessage() for record in caplog.records)


def test_attrs_that_lack_something(repo, caplog):
    change(repo, alpha=0.7)
    assert NGramLM.from_wav2vec2_with_lm(repo).config.words.word_bonus == pytest.approx(1.5 / 0.7)
    assert any("has no beta; pyctcdecode's default is taken, 1.5" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("{", "isn't JSON"),
        ("[]", "should be an object"),
        (json.dumps(ATTRS | {"alpha": "much"}), "alpha should be a finite number .*, is 'much'"),
        (json.dumps(ATTRS | {"beta": True}), "beta should be a finite number"),
        (json.dumps(ATTRS | {"alpha": 1e300}), "alpha should be a finite number"),
        (json.dumps(ATTRS | {"alpha": 1e-300}), "alpha should be 0, or at least 1e-6 in size, is '1e-300'"),
        (json.dumps(ATTRS | {"score_boundary": 1}), "score_boundary should be true or false"),
        (json.dumps(ATTRS | {"alpha": -1}), "alpha should be at least 0"),
    ],
)
def test_damaged_attrs(repo, text, problem):
    (repo / "language_model" / "attrs.json").write_text(text)
    with pytest.raises(NGramFormatError, match=problem):
        NGramLM.from_wav2vec2_with_lm(repo)


def test_unigrams(repo, tokenizer, caplog):
    """Words in one and not in the other are counted; without a list all of the LM's are known."""
    unigrams = repo / "language_model" / "unigrams.txt"
    known = [word for word in unigrams.read_text().split() if word.isascii()]  # others have letters that the tokenizer lacks
    unigrams.write_text("\n".join([*known[:30], "zermatt", "<s>", "</s>"]))
    assert NGramLM.from_wav2vec2_with_lm(repo, closed_vocabulary=True).config.words.num_spelled == 30
    messages = [record.getMessage() for record in caplog.records]
    assert any("1 words of the lexicon aren't in the language model, such as 'zermatt'" in message for message in messages)
    assert any("words aren't in the lexicon" in message for message in messages)
    caplog.clear()
    restricted = NGramLM.from_wav2vec2_with_lm(repo)
    messages = [record.getMessage() for record in caplog.records]
    assert any("1 words of the unigrams aren't in the language model, such as 'zermatt'" in message for message in messages)
    assert any("6 words of the language model aren't among the unigrams" in message for message in messages)
    unigrams.write_text("")
    everything = NGramLM.from_wav2vec2_with_lm(repo).config.words.num_spelled
    unigrams.unlink()
    assert NGramLM.from_wav2vec2_with_lm(repo).config.words.num_spelled == everything > 30
    assert restricted.config.words.num_spelled == everything  # what isn't listed costs the offset, and is known otherwise
    full = NGramLM.from_wav2vec2_with_lm(repo)
    for text in ("stop radio", "turn off the radio", "when it rains turn on the lamp", "stop zermatt radio"):
        row = torch.tensor([tokenizer(text)["input_ids"]])
        unlisted = sum(word in ("turn", "the", "when") for word in text.split())
        expected = float(full.score_sequences(row)) - 10 * math.log(10) * unlisted
        assert float(restricted.score_sequences(row)) == pytest.approx(expected, abs=1e-3)
    unigrams.write_bytes(b"stra\xdfe\n")
    with pytest.raises(NGramFormatError, match="not UTF-8"):
        NGramLM.from_wav2vec2_with_lm(repo)


def test_binaries_come_first(repo, tmp_path):
    expected = NGramLM.from_wav2vec2_with_lm(repo)
    folder = repo / "language_model"
    shutil.copy(unpack("o3_probing_no_words", tmp_path), folder / "5gram.bin")
    found = NGramLM.from_wav2vec2_with_lm(repo)  # its words are known from unigrams.txt
    row = torch.tensor([[20, 21, 1, 20]])
    assert float(found.score_sequences(row)) == pytest.approx(float(expected.score_sequences(row)), abs=1e-2)
    (folder / "unigrams.txt").unlink()
    with pytest.raises(NGramFormatError, match="no list of its words was given"):
        NGramLM.from_wav2vec2_with_lm(repo)
    (folder / "other.binary").write_bytes(b"")
    with pytest.raises(NGramFormatError, match=r"several language models, 5gram\.bin, other\.binary"):
        NGramLM.from_wav2vec2_with_lm(repo)


def test_nothing_there(repo, tmp_path):
    (repo / "language_model" / "words.arpa").unlink()
    with pytest.raises(NGramFormatError, match=r"no KenLM file .* there is attrs.json, unigrams.txt"):
        NGramLM.from_wav2vec2_with_lm(repo)
    with pytest.raises(NGramFormatError, match="no KenLM file"):
        NGramLM.from_wav2vec2_with_lm(tmp_path)
    with pytest.raises(FileNotFoundError, match="neither a folder nor the id"):
        NGramLM.from_wav2vec2_with_lm("no/such/folder")


def other_tokenizer(tokenizer, folder, change):
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    (folder / "vocab.json").write_text(json.dumps({change(piece): token for token, piece in enumerate(pieces)}))
    return Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), unk_token="<pad>", bos_token=None, eos_token=None)


def test_another_tokenizer(repo, tokenizer, tmp_path):
    """Labels that are the tokenizer's in another case say how words have to be written; other ones are refused."""
    capitals = other_tokenizer(tokenizer, tmp_path, lambda piece: piece if piece == "<pad>" else piece.upper())
    lm = NGramLM.from_wav2vec2_with_lm(repo, capitals)
    assert lm.config.words.case == "upper"
    (repo / "alphabet.json").unlink()
    with pytest.raises(NGramFormatError, match='case="upper"'):
        NGramLM.from_wav2vec2_with_lm(repo, capitals)
    assert NGramLM.from_wav2vec2_with_lm(repo, capitals, case="upper").config.words.case == "upper"


def test_the_tokenizer_of_another_recogniser(saved, tokenizer, tmp_path):
    swapped = other_tokenizer(tokenizer, tmp_path, lambda piece: {"a": "b", "b": "a"}.get(piece, piece))
    with pytest.raises(TokenizerMismatchError, match="the label 'a' for class 2, the tokenizer the piece 'b'"):
        NGramLM.from_wav2vec2_with_lm(saved, swapped)


def test_unknown_words_that_are_forbidden(repo, tokenizer):
    """An offset of minus infinity, as pyctcdecode saves it."""
    change(repo, **ATTRS | {"unk_score_offset": -math.inf})
    assert "-Infinity" in (repo / "language_model" / "attrs.json").read_text()
    forbidding, closed = NGramLM.from_wav2vec2_with_lm(repo), NGramLM.from_wav2vec2_with_lm(repo, closed_vocabulary=True)
    row = torch.tensor([tokenizer("stop zermatt radio")["input_ids"]])
    assert float(forbidding.score_sequences(row)) == float(closed.score_sequences(row)) < -9000
    change(repo, **ATTRS | {"alpha": -math.inf})
    with pytest.raises(NGramFormatError, match="alpha should be a finite number"):
        NGramLM.from_wav2vec2_with_lm(repo)


def test_closed_vocabulary(saved):
    lm = NGramLM.from_wav2vec2_with_lm(saved, closed_vocabulary=True)
    assert float(lm.score_sequences(torch.tensor([[25, 25]]))) < -9000


@pytest.mark.slow
def test_from_the_hub(saved, tmp_path):
    """Only what is needed is downloaded; a second time without a network."""
    with HubServer(tmp_path / "hub") as hub:
        files = {path.relative_to(saved).as_posix(): path.read_bytes() for path in saved.rglob("*") if path.is_file()}
        danger = {"pytorch_model.bin": b"weights", "language_model/cache.pkl": b"pickle", "modeling.py": b"raise SystemExit(3)"}
        hub.commit("alice/with-lm", files | danger)
        code = """
            import json
            from hf_ngpulm import NGramLM
            from hf_ngpulm.language_model.loading import load_language_model
            lm = NGramLM.from_wav2vec2_with_lm("alice/with-lm")
            other = load_language_model("alice/with-lm")
            row = lm.score_sequences(__import__("torch").tensor([[20, 21, 1, 20]]))
            print(json.dumps([float(row), lm.config == other.config, lm.config.defaults]))
        """
        environment = {"PYTHONPATH": str(bundled("hf_ngpulm").parent)}
        online = hub.run(code, **environment)
        assert online.returncode == 0, online.stderr
        asked = {request.path.rpartition("/")[2] for request in hub.requests}
        assert not asked & {"pytorch_model.bin", "cache.pkl", "modeling.py", "model.safetensors"}
        assert {"words.arpa", "unigrams.txt", "attrs.json"} <= asked
        offline = hub.run(code, offline=True, **environment)
        assert offline.returncode == 0, offline.stderr
    score, same, defaults = json.loads(online.stdout)
    assert same and defaults["lm_weight"] == 0.5 and math.isfinite(score)
    assert offline.stdout == online.stdout


def test_a_recogniser_of_pieces(words_arpa, tmp_path):
    """Words are cut in any of several ways, as pyctcdecode takes them, and their texts are joined."""
    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    words = LanguageModel(words_arpa).words
    labels = ["" if token == tokenizer.pad_token_id else piece for token, piece in enumerate(pieces)]
    build_ctcdecoder(labels, words_arpa, words).save_to_dir(tmp_path)
    lm = NGramLM.from_wav2vec2_with_lm(tmp_path, tokenizer)
    assert lm.config.defaults["merge"] == "text"
    assert lm.config.words.num_spellings > 4 * lm.config.words.num_spelled
    lexicon = make_lexicon(["kitchen"], tokenizer, cuttings=16)
    other, own = lexicon.tokens[lexicon.offsets[-2] :].tolist(), tokenizer("kitchen")["input_ids"]
    assert other != own
    logits = torch.full((2, 12, len(labels)), -20.0)
    logits[..., tokenizer.pad_token_id] = 0.0
    for row, spelling in enumerate((other, own)):
        logits[row, range(len(spelling)), spelling] = 10.0
    decoder = CTCDecoder(tokenizer, lm, **lm.config.defaults)
    (found,), (by_tokenizer,) = decoder(logits)
    assert (found.text, found.token_ids, by_tokenizer.token_ids) == ("kitchen", other, own)
    assert found.lm_score == pytest.approx(by_tokenizer.lm_score, abs=1e-4)


def test_what_unknown_words_are_charged():
    """Their share of the language model by the average word's length, and the offset, which grows from there on."""
    attrs = Attrs(alpha=0.5, beta=3.0, unk_score_offset=-10.0)
    charged = charged_to_unknown_words(attrs, -8.0)
    assert [charged[n] for n in (0, 3, 6, 12)] == [-10.0, -12.0, -14.0, -24.0]
    assert charged_to_unknown_words(Attrs(alpha=0.5, unk_score_offset=5.0), -8.0)[6] == -4.0


@pytest.mark.parametrize(
    "attrs",
    [ATTRS, ATTRS | {"alpha": 0.8, "beta": 0.0, "unk_score_offset": -3.0, "score_boundary": False}, ATTRS | {"alpha": 0.0}],
)
@pytest.mark.parametrize("closed", [False, True])
def test_composed_on_the_fly(repo, attrs, closed, outputs, tokenizer, tmp_path):
    """Unknown words that cost what they do by their length, delimiters that do, and texts that begin without context."""
    change(repo, **attrs)
    static, lazy = (
        NGramLM.from_wav2vec2_with_lm(repo, closed_vocabulary=closed, composition=c) for c in ("static", "on_the_fly")
    )
    lazy.save_pretrained(tmp_path / "saved")
    lms = (static, lazy, NGramLM.from_pretrained(tmp_path / "saved"))
    assert [lm.is_lazy for lm in lms] == [False, True, True]
    assert lazy.config.defaults == static.config.defaults == lms[2].config.defaults
    rows = torch.randint(0, static.vocab_size, (8, 12), generator=torch.Generator().manual_seed(0))
    for lm in lms[1:]:
        assert torch.equal(lm.score_tokens(rows)[0], static.score_tokens(rows)[0])
        assert torch.equal(lm.score_sequences(rows), static.score_sequences(rows))
    batch = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in outputs[:4]], batch_first=True)
    lengths = torch.tensor([len(row) for row in outputs[:4]])
    expected, found, loaded = (
        CTCDecoder(tokenizer, lm, **{**lm.config.defaults, "num_beams": 16})(batch, lengths) for lm in lms
    )
    assert [(row[0].text, row[0].score) for row in found] == [(row[0].text, row[0].score) for row in expected]
    assert [(row[0].text, row[0].score) for row in loaded] == [(row[0].text, row[0].score) for row in expected]
