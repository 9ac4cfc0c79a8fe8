"""What a language model knows of a tokenizer."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_ngpulm.errors import TokenizerMismatchError
from hf_ngpulm.text.vocabulary import Vocabulary, check_tokenizer, tokenizer_name, tokenizer_of

DEMO_MODEL = Path(__file__).parents[2] / "examples" / "models" / "ctc"


class FakeTokenizer:
    def __init__(self, vocabulary, special=(), unk=None, name="org/asr"):
        self.vocabulary = vocabulary if isinstance(vocabulary, dict) else {p: i for i, p in enumerate(vocabulary)}
        self.all_special_ids = [self.vocabulary[piece] for piece in special]
        self.unk_token_id = None if unk is None else self.vocabulary[unk]
        self.name_or_path = name

    def get_vocab(self):
        return dict(self.vocabulary)

    def __len__(self):
        return len(self.vocabulary)


ASR = FakeTokenizer(["<unk>", "▁a", "b", "<pad>"], special=["<unk>", "<pad>"], unk="<unk>")


def test_of_a_size():
    vocabulary = Vocabulary.of(vocab_size=7)
    assert vocabulary == Vocabulary(7)
    assert (vocabulary.pieces, vocabulary.tokenizer_id, vocabulary.fingerprint) == (None,) * 3


def test_of_a_tokenizer():
    assert Vocabulary.of(ASR) == Vocabulary(3, ("<unk>", "▁a", "b"), "org/asr")


def test_of_a_processor():
    assert Vocabulary.of(SimpleNamespace(tokenizer=ASR)) == Vocabulary.of(ASR)
    assert tokenizer_of(SimpleNamespace(tokenizer=ASR)) is tokenizer_of(ASR) is ASR


def test_size_asked_for():
    assert Vocabulary.of(ASR, 4).pieces == ("<unk>", "▁a", "b", "<pad>")
    assert Vocabulary.of(ASR, 6).pieces == ("<unk>", "▁a", "b", "<pad>", None, None)
    assert Vocabulary.of(ASR, 2) == Vocabulary(2, ("<unk>", "▁a"), "org/asr")


def test_special_tokens_in_front_keep_their_ids():
    letters = FakeTokenizer(["<pad>", "<s>", "</s>", "<unk>", "|", "E"], special=["<pad>", "<s>", "</s>", "<unk>"], unk="<unk>")
    assert Vocabulary.of(letters) == Vocabulary(6, ("<pad>", "<s>", "</s>", "<unk>", "|", "E"), "org/asr")


def test_the_token_between_words_is_ordinary():
    """Also where it is the last one, and the tokenizer counts it among its special tokens."""
    letters = FakeTokenizer(["a", "b", "|", "[UNK]", "[PAD]"], special=["[UNK]", "[PAD]", "|"], unk="[UNK]")
    letters.word_delimiter_token_id = 2
    assert Vocabulary.of(letters) == Vocabulary(3, ("a", "b", "|"), "org/asr")


def test_unk_behind_the_last_ordinary_token():
    late = FakeTokenizer(["a", "b", "[UNK]", "[PAD]"], special=["[UNK]", "[PAD]"], unk="[UNK]")
    assert Vocabulary.of(late) == Vocabulary(2, ("a", "b"), "org/asr")


def test_ids_without_a_piece():
    gaps = FakeTokenizer({"a": 0, "b": 3})
    assert Vocabulary.of(gaps).pieces == ("a", None, None, "b")


def test_only_special_tokens():
    assert Vocabulary.of(FakeTokenizer(["<a>", "<b>"], special=["<a>", "<b>"])).size == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "pass the ASR model's tokenizer"),
        ((None, 0), "vocab_size must be at least 1, got 0"),
        ((ASR, -5), "vocab_size must be at least 1, got -5"),
        ((FakeTokenizer([]),), "has no tokens"),
    ],
)
def test_nothing_to_make_it_of(arguments, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary.of(*arguments)


def test_a_real_tokenizer():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO_MODEL)
    vocabulary = Vocabulary.of(tokenizer)
    assert vocabulary == Vocabulary.of(str(DEMO_MODEL))
    assert vocabulary.size == 256
    assert vocabulary.tokenizer_id == "ctc"  # a local folder's own name, without the way there
    assert vocabulary.pieces is not None
    ids = tokenizer("the quick brown fox", add_special_tokens=False).input_ids
    assert [vocabulary.pieces[token_id] for token_id in ids] == tokenizer.convert_ids_to_tokens(ids)
    check_tokenizer(256, vocabulary.fingerprint, vocabulary.tokenizer_id, tokenizer)


def test_names():
    assert tokenizer_name(ASR) == "org/asr"
    assert tokenizer_name(FakeTokenizer(["a"], name="")) is None
    assert tokenizer_name(FakeTokenizer(["a"], name=f"{DEMO_MODEL}/")) == "ctc"
    assert tokenizer_name(object()) is None


def test_fingerprint_tells_vocabularies_apart():
    different = [
        Vocabulary(2, pieces=("a", "b")),
        Vocabulary(2, pieces=("b", "a")),
        Vocabulary(2, pieces=("ab", "")),
        Vocabulary(2, pieces=("", "ab")),
        Vocabulary(1, pieces=("ab",)),
        Vocabulary(3, pieces=("a", "b", "")),
        Vocabulary(3, pieces=("a", "b", "c")),
        Vocabulary(2, pieces=("a", "\udcff")),  # a byte that isn't text
    ]
    assert len({vocabulary.fingerprint for vocabulary in different}) == len(different)
    assert Vocabulary(2, pieces=("a", "b"), tokenizer_id="other").fingerprint == different[0].fingerprint
    # The value is saved in config.json of published models: it may not change.
    assert different[0].fingerprint == "37efc929c5c40fd796cc3111e218b304223414aa11ecf5c41f8187cd40cb5955"


class TestCheckTokenizer:
    fingerprint = Vocabulary.of(ASR).fingerprint

    def test_the_same(self):
        check_tokenizer(3, self.fingerprint, "org/asr", ASR)
        check_tokenizer(3, self.fingerprint, "org/asr", SimpleNamespace(tokenizer=ASR))
        renamed = FakeTokenizer(["<unk>", "▁a", "b", "<pad>", "more"], name="fork/asr")
        check_tokenizer(3, self.fingerprint, "org/asr", renamed)

    def test_without_a_fingerprint(self):
        check_tokenizer(4, None, None, ASR)

    def test_too_few_tokens(self):
        with pytest.raises(TokenizerMismatchError, match=r"scores 5 token ids .*tokenizer 'org/asr' has only 4"):
            check_tokenizer(5, None, None, ASR)

    def test_other_pieces(self):
        other = FakeTokenizer(["<unk>", "▁a", "c", "<pad>"], name="org/other")
        with pytest.raises(TokenizerMismatchError) as caught:
            check_tokenizer(3, self.fingerprint, "org/asr", other)
        for part in ("made for the tokenizer of 'org/asr'", "'org/other'", str(self.fingerprint)[:12], "'c'"):
            assert part in str(caught.value)
