"""Texts are written as a recogniser writes, and those that are already stay as they are."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speech_models import whisper_parts
from transformers import AutoTokenizer

from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.text.adaptation import Adapter, Habits, habits_of, shown_by, written_by

# What whisper-tiny.en makes of orders.
TRANSCRIPTS = [
    "Can I get an 8 ounce drip coffee?",
    "Can I get a latte with almond milk?",
    "Give me a 12-ounce mocha, please.",
    "I want a triple shot 16-ounce Americano.",
    "I want what I want, an Americano.",
    "Make me a decaf latte.",
]
WHISPER = Habits("sentence", end=".", digits_from=10, language="en")
PLAIN = Habits("lower", end="", digits_from=inf, hyphenless=True, language="en")


@pytest.fixture
def numbers():
    pytest.importorskip("text_to_num")
    pytest.importorskip("num2words")


def test_transcripts_tell(numbers):
    habits = shown_by(TRANSCRIPTS, "en")
    assert (habits.case, habits.end, habits.digits_from) == ("sentence", ".", 8)
    assert habits.ends == {"can": "?"} and habits.capitals == {"i": "I", "americano": "Americano"}
    assert not habits.hyphenless
    adapter = Adapter(habits, ["can i get a twelve ounce latte"])
    assert adapter("can i get an eight ounce americano") == "Can I get an 8 ounce Americano?"
    assert adapter("seven lattes") == "Seven lattes."
    told = adapter.told()
    assert told[0].startswith("numbers from 8 on in digits: 1 of 2 texts, such as 'can i get an eight ounce")
    assert [line.split(":")[0] for line in told[1:]] == ["capitals", "a mark at the end"]
    assert adapter.notices() == []


def test_transcripts_in_style_stay(numbers):
    spoken = [text for text in TRANSCRIPTS if "8 ounce" not in text]  # others write "12-ounce"
    adapter = Adapter(shown_by(TRANSCRIPTS, "en"), TRANSCRIPTS)
    assert [adapter(text) for text in spoken] == spoken and adapter.told() == []
    small = ["set an alarm for seven", "what's the weather"]
    adapter = Adapter(shown_by(small, "en"), small)
    assert [adapter(text) for text in small] == small and adapter.told() == []


def test_what_was_changed_is_shown_where_it_begins():
    adapter = Adapter(Habits(end=""))
    assert adapter("/usr is full.") == "usr is full"
    assert adapter.told() == ["no punctuation: 1 of 1 texts, such as '/usr is full.' -> 'usr is full'"]
    adapter = Adapter(Habits("sentence", end="!"))
    adapter("Call the harbour master at the old pier before the ebb tide sets in")
    assert adapter.told() == ["a mark at the end: 1 of 1 texts, such as '…the ebb tide sets in' -> '…the ebb tide sets in!'"]


def test_capitals_and_small_letters():
    shouted = ["CAN I GO?", "STOP."]
    assert Adapter(Habits("sentence"), shouted)("CAN I GO?") == "Can i go?"
    assert Adapter(Habits("sentence", language="en"), shouted)("CAN I GO?") == "Can I go?"
    assert Adapter(Habits("sentence", language="en"))("i'd say i-i i, i.") == "I'd say i-i I, I."
    assert Adapter(Habits("sentence"), ["NASA is here"])("NASA") == "NASA"
    assert Adapter(Habits("upper"))("straße") == "STRASSE"
    assert Adapter(Habits("lower"))("Straße") == "straße"
    assert Adapter(Habits("sentence"))("“ça va") == "“Ça va"


def test_other_languages_but_their_numbers():
    german = ["Ich habe 12 Hunde.", "Wo ist das?"]
    habits = shown_by(german, "de")
    adapter = Adapter(habits, german)
    assert adapter("wo sind zwölf katzen") == "Wo sind zwölf katzen?"
    (notice,) = adapter.notices()
    assert "known in English only, not in 'de'" in notice
    (notice,) = Adapter(shown_by(german), german).notices()
    assert "language='en'" in notice
    assert Adapter(shown_by(["wo ist das"])).notices() == []
    assert Adapter(Habits("sentence", end="."))("你好") == "你好"  # another mark there
    assert Adapter(shown_by(["你好。", "再见。"]))("你好") == "你好。"


def test_tokenizers_tell(numbers):
    lower = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    assert written_by(lower, "en") == PLAIN
    assert Adapter(PLAIN)("At 21, the well-known B. ran.") == "at twenty one the well known b ran"
    assert Adapter(written_by(lower), ["21"]).notices() != [] == Adapter(written_by(lower), ["no digits"]).notices()


def test_a_whisper_writes_as_whispers_do(tmp_path):
    tokenizer = whisper_parts(tmp_path / "tokenizer.json")["tokenizer"]
    assert habits_of(tokenizer) == Habits("sentence", end=".", digits_from=10)
    assert habits_of(tokenizer, TRANSCRIPTS[:2]).ends == {}
    assert habits_of(tokenizer, ["what is it", "oh"]).case == "lower"


class Bytes:
    """A tokenizer of bytes that is no Whisper's."""

    all_special_tokens = ()

    def get_vocab(self):
        return {piece: i for i, piece in enumerate(("Ġ", "Ċ", "Ġthe", "A"))}


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="doesn't tell how the recogniser writes"):
        habits_of(Bytes())
    with pytest.raises(ValueError, match="transcripts is empty"):
        habits_of(Bytes(), [])
    with pytest.raises(ValueError, match="given twice"):
        habits_of(TRANSCRIPTS, TRANSCRIPTS)
    path = tmp_path / "transcripts.txt"
    path.write_text("\n".join(TRANSCRIPTS))
    assert habits_of(str(path)) == habits_of(TRANSCRIPTS)


WORDS = (
    "i I'd can a twelve Twenty five hundred and point oh one nineteen ounce well-known NASA é ß 8 12 84 $5 7:30 20,000 3.5 21st"
)
TEXTS = st.lists(
    st.tuples(st.sampled_from(WORDS.split()), st.sampled_from([" ", " ", " ", "-", ", ", ". ", "? "])), max_size=9
).map(lambda parts: " ".join("".join(map("".join, parts)).split()))
HABITS = st.builds(
    Habits,
    case=st.sampled_from([None, "lower", "upper", "sentence"]),
    capitals=st.sampled_from([{}, {"can": "Can", "i": "I"}]),
    end=st.sampled_from([None, "", ".", "。"]),
    ends=st.sampled_from([{}, {"can": "?"}]),
    digits_from=st.sampled_from([None, 0, 2, 8, 10, 21, inf]),
    hyphenless=st.booleans(),
    language=st.sampled_from([None, "en"]),
)


@given(HABITS, st.lists(TEXTS, max_size=4))
def test_twice_is_once(numbers_once, habits, texts):
    once = list(map(Adapter(habits, texts), texts))
    again = Adapter(habits, once)
    assert list(map(again, once)) == once, again.told()


@given(st.lists(st.text(max_size=30), max_size=4), HABITS)
def test_any_text(numbers_once, texts, habits):
    texts = [" ".join(text.split()) for text in texts]
    once = list(map(Adapter(habits, texts), texts))
    assert list(map(Adapter(habits, once), once)) == once


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_whatever_transcripts_tell_can_be_applied(numbers_once, texts):
    for language in (None, "en"):
        adapter = Adapter(shown_by(texts, language), texts)
        once = list(map(adapter, texts))
        assert len(adapter.told()) <= 7 and list(map(Adapter(shown_by(texts, language), once), once)) == once


@pytest.fixture(scope="module")
def numbers_once():
    pytest.importorskip("text_to_num")
    pytest.importorskip("num2words")
