"""What the core's tests do is done with address and undefined-behaviour sanitizers, too: they have nothing to report."""

import pytest
import sanitized

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why := sanitized.why_not()), reason=str(why))]


def test_a_read_outside_an_array_is_reported(tmp_path):
    program = "import torch, core_parts; core_parts._softmax(64, torch.zeros(16), torch.empty(3))"
    status, _, reports = sanitized.run(["-c", program], tmp_path, 300)
    assert status != 0 and "heap-buffer-overflow" in reports


@pytest.mark.parametrize("part", ["engines", "automaton", "formats", "ngrams", "lexicon", "search", "text"])
def test_nothing_is_reported(part, tmp_path):
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", f"tests/{part}"]
    status, printed, reports = sanitized.run(arguments, tmp_path, 3000)
    assert not reports, reports[:6000]
    assert status == 0, printed[-6000:]
