"""Readers of language models are fed damaged files for a minute each, under sanitizers: all they do is refuse by name."""

import random
import sys

import fuzzing
import pytest
import sanitized

SECONDS = 60


@pytest.mark.slow
@pytest.mark.skipif(bool(why := sanitized.why_not()), reason=str(why))
@pytest.mark.parametrize("name", fuzzing.TARGETS)
def test_damaged_files_do_no_harm(name, tmp_path):
    seed = random.SystemRandom().randrange(2**32)  # found something? the input is kept
    arguments = ["tests/support/fuzzing.py", name, "--seconds", str(SECONDS), "--folder", str(tmp_path), "--seed", str(seed)]
    status, printed, reports = sanitized.run(arguments, tmp_path, SECONDS + 600)
    assert not reports, f"seed {seed}, {tmp_path / 'input'}: {reports[:6000]}"
    assert status == 0, f"seed {seed}: {printed[-6000:]}"
    print(printed, file=sys.stderr)


@pytest.mark.parametrize("name", fuzzing.TARGETS)
def test_a_few_damaged_files(name, tmp_path):
    fuzzing.fuzz(name, 1.0, tmp_path, 0)
