"""Files appear whole or not at all, and together."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hf_ngpulm.common.files import COMPLETE, standing_at, write_beside, write_together


def test_writes_a_new_file_and_its_folder(tmp_path):
    path = tmp_path / "new" / "folder" / "lm.arpa.gz"
    with write_beside(path) as beside:
        assert beside.parent.parent == path.parent
        assert beside.suffix == ".gz"
        beside.write_bytes(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_replaces_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with write_beside(str(path)) as beside:
        beside.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("existed", [True, False])
def test_an_error_leaves_everything_as_it_was(tmp_path, error, existed):
    path = tmp_path / "file"
    if existed:
        path.write_bytes(b"old")
    with pytest.raises(error), write_beside(path) as beside:
        beside.write_bytes(b"half")
        raise error
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"old"] * existed


def test_two_at_a_time(tmp_path):
    path = tmp_path / "file"
    with write_beside(path) as first, write_beside(path) as second:
        assert first != second
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert path.read_bytes() == b"first"  # the outer block ends last
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_permissions_are_those_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        with write_beside(tmp_path / "file") as beside:
            pass
    finally:
        os.umask(before)
    assert not beside.exists()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError), write_beside(tmp_path / "folder") as beside:
        beside.write_bytes(b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
    assert (tmp_path / "folder").is_dir()


def test_a_long_name(tmp_path):
    path = tmp_path / ("x" * 250 + ".gz")
    with write_beside(path) as beside:
        beside.write_bytes(b"new")
    assert path.read_bytes() == b"new"


HELD = """
import os, signal, sys
from pathlib import Path
from hf_ngpulm.common.files import write_beside

with write_beside(sys.argv[1]) as beside:
    beside.write_bytes(sys.argv[2].encode())
    (beside.parent / "of the library").write_bytes(b"more")
    print(len(os.listdir(Path(sys.argv[1]).parent)), flush=True)
    if sys.stdin.read() == "die":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of folders")
def test_what_a_killed_process_leaves_goes_with_the_next_write(tmp_path):
    path = tmp_path / "lm.arpa"
    path.write_bytes(b"old")
    command = [sys.executable, "-c", HELD, str(path)]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": Path(__file__).parents[1]}
    writing, dying = (subprocess.Popen([*command, text], **options) for text in ("late", "half"))
    for process in (writing, dying):
        process.stdout.readline()  # is in the midst of writing
    dying.communicate("die")
    assert dying.returncode == -signal.SIGKILL and path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 3
    with write_beside(path) as beside:
        beside.write_bytes(b"new")
        assert len(list(tmp_path.iterdir())) == 3  # this one, and that of the process that still writes
    assert path.read_bytes() == b"new"
    writing.communicate("go on")
    assert writing.returncode == 0
    assert path.read_bytes() == b"late" and list(tmp_path.iterdir()) == [path]


# -- several files


def put(folder, text):
    with write_together(folder) as files:
        for name in ("a", "b"):
            (files / name).write_text(text)


def standing(folder):
    return "".join(standing_at(folder / name).read_text() for name in ("a", "b"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_files_take_their_places_together(tmp_path, error):
    folder = tmp_path / "new"
    put(folder, "1")
    (folder / "other").write_text("mine")
    with pytest.raises(error), write_together(folder) as files:
        (files / "a").write_text("2")
        raise error
    assert standing(folder) == "11"
    put(folder, "3")
    assert standing(folder) == "33" and names(folder) == ["a", "b", "other"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_permissions_of_several_files(tmp_path):
    before = os.umask(0o027)
    try:
        with write_together(tmp_path) as files:
            (files / "a").touch()
            (files / "b").touch(0o600)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "b")] == [0o640] * 2


def test_the_next_one_ends_what_was_cut_short(tmp_path):
    put(tmp_path, "1")
    complete = tmp_path / COMPLETE
    complete.mkdir()
    (complete / "b").write_text("2")
    assert standing(tmp_path) == "12"
    with pytest.raises(ValueError), write_together(tmp_path):
        raise ValueError
    assert standing(tmp_path) == "12"
    with write_together(tmp_path) as files:
        (files / "c").touch()
    assert (tmp_path / "b").read_text() == "2" and names(tmp_path) == ["a", "b", "c"]


@pytest.mark.parametrize(("in_use", "found"), [("b", "11"), ("a", "22")])
def test_a_file_that_can_not_be_replaced(tmp_path, monkeypatch, in_use, found):
    """Windows replaces no file that is open. If it is the first, all stays as it was; after that the new ones hold."""
    put(tmp_path, "1")
    replace = os.replace

    def refusing(source, target):
        if Path(target) == tmp_path / in_use:
            raise PermissionError(13, "in use", str(target))
        replace(source, target)

    with monkeypatch.context() as patched, pytest.raises(PermissionError, match=f"{in_use}'"):
        patched.setattr(os, "replace", refusing)
        put(tmp_path, "2")
    assert standing(tmp_path) == found
    put(tmp_path, "3")
    assert standing(tmp_path) == "33" and names(tmp_path) == ["a", "b"]


def test_two_that_are_complete_at_once(tmp_path, monkeypatch):
    """Another process completes its files between the moment when there are none and ours."""
    rename, other = os.rename, tmp_path / "other"
    other.mkdir()
    for name in ("a", "b"):
        (other / name).write_text("1")

    def beaten(source, target):
        if other.exists():
            rename(other, target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", beaten)
    put(tmp_path, "2")
    assert standing(tmp_path) == "22" and names(tmp_path) == ["a", "b"]
