import json

import pytest
from transformers import AutoTokenizer, Wav2Vec2CTCTokenizer

from hf_ngpulm.common.bundled import bundled

TEXTS = ["a cab", "a bad cab", "dad had a cab", "a bad dad", "had a fab cab", "abba had a cab", "dad fed a bad cab"]


@pytest.fixture(scope="session")
def texts():
    return TEXTS


@pytest.fixture(scope="session")
def letters(tmp_path_factory):
    """A vocabulary of letters with a delimiter."""
    path = tmp_path_factory.mktemp("letters") / "vocab.json"
    path.write_text(json.dumps({piece: i for i, piece in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefh"])}))
    return Wav2Vec2CTCTokenizer(str(path))


@pytest.fixture(scope="session")
def pieces():
    """A vocabulary of pieces with marks."""
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
