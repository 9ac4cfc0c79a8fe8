"""pyctcdecode's own tests, as they are, with `hf_ngpulm.compat` in place of its modules.

They aren't part of this repository. Those of 0.4.0 come with the source distribution on PyPI (0.5.0's has none), those of the
newest commit with git, or from a checkout that HF_NGPULM_PYCTCDECODE names.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

import hf_ngpulm

pytestmark = pytest.mark.slow
RELEASE = "0.4.0"
REPOSITORY = "https://github.com/kensho-technologies/pyctcdecode"
COMMIT = "afecb67622c1395b85b6a55d2902a780c0c927d4"  # of April 2023, the newest
MODULES = ("alphabet", "constants", "decoder", "language_model")
# Functions with an underscore of the modules that are replaced.
OF_PRIVATE_HELPERS = {
    "test_normalize_alphabet", "test_normalize_alphabet_bpe", "test_merge_beams", "test_normalize_whitespace",
    "test_prune_history", "test_sort_and_trim_beams", "test_sum_log_scores",
}  # fmt: skip
# Both ask whether a pool of processes has been used; the second one compares scores in double precision to the last digit.
OF_POOLS = {"test_decode_batch", "test_decode_beams_batch"}
# Of a method that no release has, and that isn't here.
OF_PARTS = {
    "test_partial_decode", "test_partial_decode_with_lm", "test_partial_decode_with_hotwords",
    "test_partial_decode_with_multiple_hotword_scorers",
}  # fmt: skip
STANDING_IN = """
import importlib

from hf_ngpulm.compat import MODULES

module = importlib.import_module(MODULES["{name}"])

def __getattr__(name):
    if name in ("__path__", "__file__"):
        raise AttributeError(name)
    if hasattr(module, name):
        return getattr(module, name)
    def private(*given, **more):
        raise AssertionError(f"{{name}} is pyctcdecode's own affair")
    return private
"""
# The first call of a search may have to compile it.
CONFTEST = """
from hypothesis import settings

settings.register_profile("here", deadline=None, derandomize=True)
settings.load_profile("here")
"""


def run(*command, **more):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, **more)


def pip(*arguments):
    found = run(sys.executable, "-m", "pip", "-q", *arguments)
    if found.returncode:
        pytest.skip(f"PyPI can't be reached: {found.stderr.strip()[-200:]}")


def from_release(folder):
    pip("download", "--no-deps", "--no-binary", ":all:", "--dest", folder, f"pyctcdecode=={RELEASE}")
    root = f"pyctcdecode-{RELEASE}/pyctcdecode/tests/"
    with tarfile.open(folder / f"pyctcdecode-{RELEASE}.tar.gz") as packed:
        for member in packed.getmembers():
            if member.isfile() and member.name.startswith(root) and ".." not in member.name:
                path = folder / "tests" / member.name.removeprefix(root)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(packed.extractfile(member).read())
    return folder / "tests"


def from_newest(folder):
    checkout = os.environ.get("HF_NGPULM_PYCTCDECODE")
    if checkout:
        found = Path(checkout, "pyctcdecode", "tests")
        assert found.is_dir(), f"HF_NGPULM_PYCTCDECODE={checkout} is no checkout of {REPOSITORY}"
        return found
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    for command in (("init", "-q"), ("fetch", "-q", "--depth", "1", REPOSITORY, COMMIT), ("checkout", "-q", COMMIT)):
        found = run("git", *command, cwd=folder, env=environment)
        if found.returncode:
            pytest.skip(f"no network: set HF_NGPULM_PYCTCDECODE to a checkout of {REPOSITORY} ({found.stderr.strip()[-200:]})")
    return folder / "pyctcdecode" / "tests"


@pytest.mark.parametrize(("fetch", "count", "missing"), [(from_release, 36, set()), (from_newest, 40, OF_PARTS)])
def test_all_others_pass(tmp_path, fetch, count, missing):
    pytest.importorskip("kenlm")
    fetched, package = tmp_path / "fetched", tmp_path / "here" / "pyctcdecode"
    fetched.mkdir()
    tests = fetch(fetched)
    pip("install", "--target", tmp_path / "packages", "pygtrie")  # which its tests make tries of
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from hf_ngpulm.compat import *\n")
    for name in MODULES:
        (package / f"{name}.py").write_text(STANDING_IN.format(name=name))
    shutil.copytree(tests, package / "tests", ignore=shutil.ignore_patterns("test_notebooks.py"))  # its tutorials
    (package.parent / "conftest.py").write_text(CONFTEST)
    paths = [Path(hf_ngpulm.__file__).parents[1], package.parent, tmp_path / "packages"]
    report = tmp_path / "report.xml"
    found = run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", package.parent, f"--junitxml={report}",
        package / "tests", cwd=package.parent, env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
    )  # fmt: skip
    assert report.exists(), found.stdout[-2000:] + found.stderr[-2000:]
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    assert len(cases) == count, found.stdout[-2000:]
    assert not [case.get("name") for case in cases if case.find("skipped") is not None]
    failed = {case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None}
    assert failed == OF_PRIVATE_HELPERS | OF_POOLS | missing, found.stdout[-5000:]
