"""Files of what was fitted to recognisers: by model, and nothing that isn't one."""

from __future__ import annotations

import json

import pytest

from hf_ngpulm.common.checks import number
from hf_ngpulm.config.of_models import read_of_models, save_of_model
from hf_ngpulm.config.tuned import ModelIdentity
from hf_ngpulm.errors import NGramFormatError

KINDS = {"slope": number(0, 10)}
ONE, OTHER = ModelIdentity("a/one", "parakeet_ctc", "1"), ModelIdentity("two", "whisper", "2")


def test_a_file_has_lists_by_model(tmp_path):
    path = tmp_path / "mine.json"
    save_of_model(path, "curves", KINDS, ONE, {"slope": 1.0})
    save_of_model(path, "curves", KINDS, OTHER, {"slope": 2.0})
    save_of_model(path, "others", KINDS, OTHER, {"slope": 3.0})
    again = ModelIdentity("a/one", "parakeet_ctc", "3")  # the same by its id
    save_of_model(path, "curves", KINDS, again, {"slope": 4.0})
    assert read_of_models(path, "curves", KINDS) == [(OTHER, {"slope": 2.0}), (again, {"slope": 4.0})]
    assert read_of_models(path, "others", KINDS) == [(OTHER, {"slope": 3.0})]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "isn't a file that hf-ngpulm tune"),
        ("[]", "isn't a file that hf-ngpulm tune"),
        ("[" * 100_000, "isn't a file that hf-ngpulm tune"),
        ("{}", "has no curves of recognisers"),
        ('{"curves": 1}', "has no curves of recognisers"),
        ('{"curves": [1]}', "should list objects"),
        ('{"curves": [{"model": "a"}]}', "model_type"),
    ],
)
def test_nothing_else_is_read(tmp_path, content, why):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(NGramFormatError, match=why):
        read_of_models(path, "curves", KINDS)
    if why != "has no curves of recognisers" or "curves" in content:
        with pytest.raises(NGramFormatError, match=why):
            save_of_model(path, "curves", KINDS, ONE, {"slope": 1.0})
        assert path.read_text() == content


@pytest.mark.parametrize("slope", [11, "1", float("nan"), None])
def test_values_are_checked(tmp_path, slope):
    path = tmp_path / "mine.json"
    entry = {"model": "a", "model_type": "b", "model_fingerprint": "c", "slope": slope}
    path.write_text(json.dumps({"curves": [entry]}))
    with pytest.raises(NGramFormatError, match="slope"):
        read_of_models(path, "curves", KINDS)
