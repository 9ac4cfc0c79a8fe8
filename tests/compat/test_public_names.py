"""What pyctcdecode offers besides its decoder, and what decoders are made of."""

import copy
import math
import pickle
import random

import numpy as np
import pytest

from hf_ngpulm import NGramFormatError
from hf_ngpulm.compat import (
    Alphabet,
    BeamSearchDecoderCTC,
    HotwordScorer,
    LanguageModel,
    MultiLanguageModel,
    OutputBeamMPSafe,
    build_ctcdecoder,
    decoder,
    language_model,
    load_unigram_set_from_arpa,
    verify_alphabet_coverage,
)
from hf_ngpulm.formats.wav2vec2 import alphabet

BUNNIES = """\\data\\
ngram 1=5
ngram 2=5

\\1-grams:
-10\t<unk>\t0
0\t<s>\t0
0\t</s>\t0
0\tbugs\t0
0\tbunny\t0

\\2-grams:
0\tbunny </s>
-10\tbugs </s>
0\t<s> bugs
-10\t<s> bunny
0\tbugs bunny

\\end\\
"""
LETTERS = [" ", "b", "g", "n", "s", "u", "y", ""]


@pytest.fixture
def bunnies(tmp_path):
    path = tmp_path / "bunnies.arpa"
    path.write_text(BUNNIES)
    return path


def unclear():
    """Logits between "bugs bunny" and, a little likelier, "bunny bunny"."""
    probs = np.zeros((13, len(LETTERS)))
    for labels, share in (("bugs__ bun_ny", 0.49), ("bun_ny bun_ny", 0.51)):
        probs[range(13), [LETTERS.index(label.strip("_")) for label in labels]] += share
    return np.log(np.clip(probs, 1e-15, 1))


def test_words_that_are_not_listed(bunnies):
    """They have their own probabilities, and cost the offset: none, some, or all there is."""
    logits = unclear()
    for offset, text in ((0.0, "bugs bunny"), (-1.0, "bugs bunny"), (-10.0, "bunny bunny"), (-math.inf, "bunny bunny")):
        decoder = build_ctcdecoder(LETTERS, bunnies, ["bunny"], alpha=1.0, unk_score_offset=offset)
        assert decoder.decode(logits) == text
        other = build_ctcdecoder(LETTERS, bunnies, ["bunny"], alpha=1.0, unk_score_offset=-3.0)
        assert other.decode(logits) in ("bugs bunny", "bunny bunny")
        other.reset_params(unk_score_offset=offset)
        ours, theirs = decoder.decode_beams(logits)[0], other.decode_beams(logits)[0]
        assert (theirs.text, theirs.lm_score) == (text, pytest.approx(ours.lm_score, abs=1e-3))
    decoder = build_ctcdecoder(LETTERS, bunnies, ["bunny"], alpha=1.0, beta=0.5, unk_score_offset=-2.0)
    (beam,) = [beam for beam in decoder.decode_beams(logits, beam_prune_logp=-60) if beam.text == "bugs bunny"]
    assert beam.lm_score - beam.logit_score == pytest.approx(2 * 0.5 - 2 * math.log(10), abs=1e-4)
    # None of the words that are listed is the language model's: then all of its words are known.
    assert build_ctcdecoder(LETTERS, bunnies, ["zermatt"], alpha=1.0).decode(logits) == "bugs bunny"


def test_no_unknown_words_at_all(bunnies):
    """pyctcdecode takes minus infinity, too."""
    decoder = build_ctcdecoder(LETTERS, bunnies, alpha=1.0)
    decoder.reset_params(unk_score_offset=-math.inf)
    beams = decoder.decode_beams(unclear(), beam_prune_logp=-1000)
    assert {beam.text for beam in beams} == {"bugs bunny", "bunny bunny"}
    assert all(math.isfinite(beam.lm_score) for beam in beams)
    nonsense = np.full((3, len(LETTERS)), -30.0)
    nonsense[range(3), [LETTERS.index(label) for label in "yyb"]] = 0.0
    assert decoder.decode(nonsense) == "yb"  # where there is nothing else


def test_an_infinite_offset_is_saved(bunnies, tmp_path):
    (tmp_path / "saved").mkdir()
    build_ctcdecoder(LETTERS, bunnies, unk_score_offset=-math.inf).save_to_dir(tmp_path / "saved")
    again = BeamSearchDecoderCTC.load_from_dir(tmp_path / "saved")
    assert again._language_model.attrs.unk_score_offset == -math.inf


@pytest.mark.parametrize("labels", [["q", "x", " "], ["▁q", "x", "▁x"]])
def test_words_that_cannot_be_written(bunnies, labels, caplog):
    """All of them: everything is unknown then, with a warning."""
    decoder = build_ctcdecoder(labels, bunnies, unk_score_offset=-1.0)
    assert any("2 words can't be written" in record.getMessage() for record in caplog.records)
    logits = np.full((3, len(labels) + 1), -20.0)
    logits[[0, 1, 2], [0, 1, 1]] = 0.0
    best = decoder.decode_beams(logits)[0]
    assert best.text == "qx"
    assert best.lm_score - best.logit_score == pytest.approx(0.5 * (-10 - 1) * math.log(10) + 1.5, abs=1e-3)


def test_states_of_kenlm(bunnies):
    kenlm = pytest.importorskip("kenlm")
    with pytest.raises(TypeError, match=r"last_lm_state of a beam that this decoder has returned, got kenlm\.State"):
        build_ctcdecoder(LETTERS, bunnies).decode(unclear(), lm_start_state=kenlm.State())
    model = LanguageModel(kenlm.Model(str(bunnies)), alpha=1.0)  # of which the path is used
    assert BeamSearchDecoderCTC(Alphabet.build_alphabet(LETTERS), model).decode(unclear()) == "bugs bunny"


def test_what_the_beginning_of_a_word_scores(bunnies):
    listed, all_known = (LanguageModel(bunnies, unigrams, unk_score_offset=-6.0) for unigrams in (["bunny", "zermatt"], None))
    assert [listed.score_partial_token(token) for token in ("", "b", "bunny", "bunnyb", "bugs", "zer")] == [0, 0, 0, -6, -6, -6]
    assert listed.score_partial_token("q" * 9) == -9.0
    assert all_known.score_partial_token("b") == -6.0  # without a list nothing is known before it ends
    both = MultiLanguageModel([listed, all_known])
    assert both.score_partial_token("bu") == -3.0 and both.order == 2
    listed.unk_score_offset = -math.inf
    assert listed.score_partial_token("bun") == 0.0 and listed.score_partial_token("x") == -math.inf


def test_several_models(bunnies, tmp_path):
    lm = LanguageModel(bunnies, alpha=1.0)
    labels = Alphabet.build_alphabet(LETTERS)
    one, twice = (BeamSearchDecoderCTC(labels, model) for model in (lm, MultiLanguageModel([lm, lm])))
    assert twice.decode_beams(unclear())[0][2:] == one.decode_beams(unclear())[0][2:]
    twice.reset_params(alpha=0.0)  # of both
    assert twice.decode(unclear()) == "bunny bunny"
    state = twice.decode_beams(unclear())[0].last_lm_state
    assert twice.decode(unclear(), lm_start_state=state)
    with pytest.raises(TypeError, match="save each of them by itself"):
        twice.save_to_dir(tmp_path)
    with pytest.raises(ValueError, match="two language models at least, got 1"):
        MultiLanguageModel([lm])
    with pytest.raises(TypeError, match="LanguageModels, got str"):
        MultiLanguageModel([lm, "words.arpa"])
    with pytest.raises(TypeError, match=r"LanguageModel or a MultiLanguageModel .* got str"):
        BeamSearchDecoderCTC(labels, str(bunnies))


def test_hotwords_by_themselves():
    scorer = HotwordScorer.build_scorer(["tyrion lannister", "hodor", "U.S.A.", " "], 3.0)
    assert scorer.words == ("U.S.A.", "hodor", "lannister", "tyrion")
    assert scorer.score("hodor is tyrion's friend, hodor, or hodor") == 6.0
    assert scorer.score("the U.S.A. and lannister") == 6.0
    assert scorer.score_partial_token("hod") == pytest.approx(3.0 * 3 / 5)
    assert scorer.score_partial_token("dor") == scorer.score_partial_token("hodorx") == 0.0
    assert HotwordScorer.build_scorer(["hodor", "hod"], 3.0).score_partial_token("ho") == 2.0  # of the shortest
    assert "lann" in scorer and "annister" not in scorer
    nothing = HotwordScorer.build_scorer(None)
    assert nothing.score("hodor") == nothing.score("") == nothing.score_partial_token("h") == 0.0
    assert "" not in nothing and nothing.words == ()
    rng = random.Random(0)
    words = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(30)]
    scorer = HotwordScorer.build_scorer(words, 1.0)
    for token in {word[:n] for word in words for n in range(1, 6)} | {"bbbbbb", "c"}:
        shortest = min((len(word) for word in words if word.startswith(token)), default=None)
        assert scorer.score_partial_token(token) == (0.0 if shortest is None else len(token) / shortest)


def test_the_words_of_a_file(bunnies, tmp_path):
    assert load_unigram_set_from_arpa(bunnies) == {"bugs", "bunny"}
    empty = tmp_path / "empty.arpa"
    empty.write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-1\t<s>\n-1\t</s>\n\n\\end\\\n")
    with pytest.raises(NGramFormatError, match="no words"):
        load_unigram_set_from_arpa(empty)


def test_labels_that_lack_characters(caplog):
    labels = Alphabet.build_alphabet([*"abcdefgh", " "])
    verify_alphabet_coverage(labels, ["bad", "face", "hex"])  # one of seven
    verify_alphabet_coverage(labels, [])
    assert not caplog.records
    verify_alphabet_coverage(labels, ["bad", "xyz"])
    assert "lack 3 of the 6 characters of the unigrams, such as 'x', 'y', 'z'" in caplog.records[-1].getMessage()
    caplog.clear()
    verify_alphabet_coverage(Alphabet.build_alphabet(["▁bu", "g", "s"]), ["bugs"])  # letters of pieces
    assert not caplog.records


def test_what_folders_hold(bunnies, tmp_path):
    folder = tmp_path / "decoder"
    folder.mkdir()
    build_ctcdecoder(LETTERS, bunnies).save_to_dir(folder)
    (folder / ".hidden").touch()
    paths = BeamSearchDecoderCTC.parse_directory_contents(str(folder))
    assert paths == {"alphabet": str(folder / "alphabet.json"), "language_model": str(folder / "language_model")}
    names = {"json_attrs": "attrs.json", "unigrams": "unigrams.txt", "kenlm": "bunnies.arpa"}
    expected = {key: str(folder / "language_model" / name) for key, name in names.items()}
    assert LanguageModel.parse_directory_contents(folder / "language_model") == expected
    (folder / "language_model" / "extra.txt").touch()
    with pytest.raises(NGramFormatError, match=r"attrs\.json, unigrams\.txt and a KenLM file, and holds .*extra\.txt"):
        LanguageModel.parse_directory_contents(folder / "language_model")
    with pytest.raises(NGramFormatError, match=r"should hold alphabet\.json"):
        BeamSearchDecoderCTC.parse_directory_contents(folder / "language_model")
    (tmp_path / "plain").mkdir()
    build_ctcdecoder(LETTERS).save_to_dir(tmp_path / "plain")
    assert BeamSearchDecoderCTC.parse_directory_contents(tmp_path / "plain")["language_model"] is None
    (tmp_path / "plain" / "readme").touch()
    with pytest.raises(NGramFormatError, match="language_model or nothing else"):
        BeamSearchDecoderCTC.parse_directory_contents(tmp_path / "plain")


def test_models_stay_until_they_are_let_go_of(bunnies):
    """As pyctcdecode's do, which `clear_class_models` is for."""
    before = len(BeamSearchDecoderCTC.model_container)
    key = build_ctcdecoder(LETTERS, bunnies)._model_key  # the decoder itself is gone
    kept = build_ctcdecoder(LETTERS, bunnies)
    assert len(BeamSearchDecoderCTC.model_container) == before + 2
    assert isinstance(BeamSearchDecoderCTC.model_container[key], LanguageModel)
    BeamSearchDecoderCTC.clear_class_models()
    assert BeamSearchDecoderCTC.model_container == {}
    with pytest.raises(RuntimeError, match="was released"):
        kept.decode(unclear())


@pytest.mark.parametrize("hotwords", [None, ["bunny"]])
def test_decoders_that_are_copied(bunnies, hotwords):
    decoder = build_ctcdecoder(LETTERS, bunnies, ["bunny", "bugs"], alpha=0.8)
    expected = decoder.decode_beams(unclear(), hotwords=hotwords)
    for other in (pickle.loads(pickle.dumps(decoder)), copy.deepcopy(decoder), copy.copy(decoder)):
        found = other.decode_beams(unclear(), hotwords=hotwords)
        assert [beam.get_mp_safe_beam() for beam in found] == [beam.get_mp_safe_beam() for beam in expected]
        assert other._model_key != decoder._model_key and other._language_model.order == 2
        other.cleanup()
    assert decoder.decode_beams(unclear(), hotwords=hotwords)[0].text == expected[0].text
    assert pickle.loads(pickle.dumps(build_ctcdecoder(LETTERS))).decode(unclear()) == "bunny bunny"


def test_beams_without_their_states(bunnies):
    (beam, *_) = build_ctcdecoder(LETTERS, bunnies).decode_beams(unclear())
    safe = beam.get_mp_safe_beam()
    assert isinstance(safe, OutputBeamMPSafe) and safe.last_lm_state is None
    assert pickle.loads(pickle.dumps(safe)) == safe == (beam.text, beam.text_frames, beam.logit_score, beam.lm_score)


def test_where_names_are_looked_for():
    """In the modules in which pyctcdecode has them."""
    for module, names in (
        (alphabet, "Alphabet verify_alphabet_coverage BPE_TOKEN UNK_TOKEN UNK_BPE_TOKEN"),
        (decoder, "BeamSearchDecoderCTC build_ctcdecoder OutputBeam OutputBeamMPSafe"),
        (language_model, "HotwordScorer LanguageModel MultiLanguageModel load_unigram_set_from_arpa"),
    ):
        for name in names.split():
            assert hasattr(module, name), name
