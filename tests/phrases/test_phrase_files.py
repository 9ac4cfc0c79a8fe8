"""Files of phrases, in the formats of several projects."""

from __future__ import annotations

import pytest

from hf_ngpulm import Phrase
from hf_ngpulm.phrases.files import read_phrase_file


@pytest.mark.parametrize(
    ("content", "phrases"),
    [
        ("Zermatt\n\n Anna Kowalska \n", ["Zermatt", "Anna Kowalska"]),
        ("snake_case\nplain\n", ["snake_case", "plain"]),
        ('{"terms": [{"text": "NVIDIA", "weight": 2, "aliases": ["in video"]}, {"text": "n8n"}]}',
         [Phrase("NVIDIA", 2, None, ["in video"]), Phrase("n8n")]),
        ("gpu_gpu_g p u\nnvidia_in video", [Phrase("gpu", aliases=["g p u"]), Phrase("nvidia", aliases=["in video"])]),
        ("HELLO WORLD :1.5\nPLAIN", [Phrase("HELLO WORLD", 1.5), Phrase("PLAIN")]),
        ("▁HE LL O ▁WORLD :2.0 @Hello_World", [Phrase("Hello_World", 2.0, None, ["HELLO WORLD"])]),
    ],
)  # fmt: skip
def test_files_are_read(tmp_path, content, phrases):
    (tmp_path / "names").write_text(content, encoding="utf-8")
    assert read_phrase_file(tmp_path / "names") == phrases


def test_what_has_no_equal_here_is_named_and_faults_are_refused(tmp_path):
    path = tmp_path / "names"
    path.write_text('{"minSimilarity": 0.5, "terms": [{"text": "a"}]}')
    with pytest.warns(UserWarning, match="minSimilarity"):
        read_phrase_file(path)
    path.write_text("a b #0.35")
    with pytest.warns(UserWarning, match="#0.35 is a probability"):
        assert read_phrase_file(path) == [Phrase("a b")]
    for content, error in (
        ("", "no phrases"),
        ('{"terms": 7}', "FluidAudio"),
        ('[{"name": "a"}]', "FluidAudio"),
        ("a :1.2.3", "number"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=error):
            read_phrase_file(path)
