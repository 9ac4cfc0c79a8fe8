"""Models that are mapped from their files: equal answers, checks where searches come by, damage that is found there."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from pathlib import Path

import pytest
import torch
from property_examples import examples

from hf_ngpulm import NGramFormatError, NGramLM
from hf_ngpulm.automaton.checks import deferred
from hf_ngpulm.formats import safetensors

TEXTS = [[0, 1, 2, 3], [1, 2, 3, 4], [4, 4, 1], [2, 3, 0, 1, 2], [3], [0, 1, 3]] * 3


@pytest.fixture
def lm():
    return NGramLM.train(TEXTS, vocab_size=5, order=4)


@pytest.fixture
def folder(lm, tmp_path):
    lm.save_pretrained(tmp_path / "lm")
    return tmp_path / "lm"


def answers(lm):
    """Everything that searches read: walks, scores of every state, ends."""
    states = torch.arange(lm.num_states)
    tokens = torch.randint(0, 5, (64, 12), generator=torch.Generator().manual_seed(1))
    return (
        lm.score_sequences(tokens), lm.scores(states), *lm.advance(states), lm.final_scores(states),
        *lm.step(states, states % 5), lm.automaton.states_after(tokens),
    )  # fmt: skip


def assert_equal(ours, expected):
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)


def test_answers_are_equal_and_only_what_is_reached_is_checked(lm, folder):
    mapped = NGramLM.from_pretrained(folder, mmap=True)
    left = deferred(mapped.searched)
    assert 0 < left.checked.sum() <= 2  # the root and the start
    mapped.score_sequences(torch.tensor([[0, 1]]))
    assert 2 < left.checked.sum() < lm.num_states
    assert_equal(answers(mapped), answers(lm))
    assert left.checked.all()
    assert deferred(mapped.tensors) is None  # asking for all tensors checks all of them


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda lm: pickle.loads(pickle.dumps(lm))])
def test_copies_stay_unchecked(lm, folder, copied):
    mapped = NGramLM.from_pretrained(folder, mmap=True)
    found = copied(mapped)
    del mapped
    gc.collect()
    assert deferred(found.searched) is not None
    assert_equal(answers(found), answers(lm))


def test_large_files_are_mapped_by_default(folder, monkeypatch):
    assert deferred(NGramLM.from_pretrained(folder).searched) is None
    monkeypatch.setattr(safetensors, "LARGE", 100)
    assert deferred(NGramLM.from_pretrained(folder).searched) is not None
    assert deferred(NGramLM.from_pretrained(folder, mmap=False).searched) is None
    assert deferred(NGramLM.from_pretrained(folder, device="cpu").searched) is not None
    with pytest.raises(ValueError, match="mmap=True is for models on the CPU, device is meta"):
        NGramLM.from_pretrained(folder, mmap=True, device="meta")


def test_other_engines_and_devices_check_everything(folder):
    mapped = NGramLM.from_pretrained(folder, mmap=True, engine="reference")
    mapped.scores(torch.zeros(1, dtype=torch.int32))
    assert deferred(mapped.searched) is None
    assert deferred(NGramLM.from_pretrained(folder, mmap=True).to("meta").searched) is None


def test_any_damaged_byte_is_found_or_harmless(folder, monkeypatch):
    """Every query ends, and either is refused, or answers as a model that was checked at once does."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    refused = 0
    for at in range(begin, len(whole)):
        for value in (whole[at] ^ 0xA5, whole[at] ^ 1, 0xFF)[: examples(3)]:
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                expected = answers(NGramLM.from_pretrained(folder, mmap=False))
            except NGramFormatError:
                expected = None
            try:
                found = answers(NGramLM.from_pretrained(folder, mmap=True))
            except NGramFormatError:
                assert expected is None
                refused += 1
            else:
                assert expected is not None, f"byte {at} as {value} was let pass"
                assert_equal(found, expected)
    assert refused > 30 * examples(3)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_searches_read_no_pages_ahead(lm, folder):
    lm.save_pretrained(folder)

    def flags() -> list[str]:
        """The flags of the file's memory; "rr" means reads at random places."""
        areas = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
        return [area.split("VmFlags:")[1] for area in areas if str(folder) in area]

    mapped = NGramLM.from_pretrained(folder, mmap=True)
    assert any(" rr" in of_area for of_area in flags())
    mapped.to_table()  # checks everything, from begin to end
    assert flags() and not any(" rr" in of_area for of_area in flags())


@pytest.mark.parametrize("at", range(6))
def test_damage_is_told_where_it_is_reached(lm, folder, at):
    name = lm.tensors._fields[at]
    tensors = lm.parts.automaton.searched._asdict()
    broken = {"arc_offsets": -5, "arc_tokens": 99, "arc_weights": torch.nan, "arc_targets": 10**6, "backoff_states": 10**6}
    tensors[name][-2] = broken.get(name, torch.inf)
    lm.save_pretrained(folder)
    mapped = NGramLM.from_pretrained(folder, mmap=True)
    mapped.scores(mapped.roots)  # fine
    with pytest.raises(NGramFormatError, match=r"reached a state that is invalid; .* \(mmap=False names the fault\)"):
        answers(mapped)
    with pytest.raises(NGramFormatError, match="broken n-gram automaton"):
        mapped.to_table()
    with pytest.raises(NGramFormatError, match="broken n-gram automaton"):
        NGramLM.from_pretrained(folder)


def test_several_files(lm, folder, monkeypatch):
    monkeypatch.setattr(safetensors, "LARGEST_FILE", 600)
    lm.save_pretrained(folder)
    names = sorted(path.name for path in folder.iterdir())
    assert "model.safetensors.index.json" in names and "model-00001-of-" in str(names) and "model.safetensors" not in names
    for mmap in (False, True):
        assert_equal(answers(NGramLM.from_pretrained(folder, mmap=mmap)), answers(lm))
    shard = next(folder.glob("model-00002-*"))
    content = shard.read_bytes()
    shard.unlink()
    with pytest.raises(NGramFormatError, match=f"it has no {shard.name}"):
        NGramLM.from_pretrained(folder)
    shard.write_bytes(content[:50])
    with pytest.raises(NGramFormatError, match="isn't a safetensors file"):
        NGramLM.from_pretrained(folder)
    monkeypatch.undo()
    lm.save_pretrained(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]


@pytest.mark.parametrize("index", ["{}", "[]", '{"weight_map": {"a": "../../secret"}}', '{"weight_map": {"a": 3}}', "\xff"])
def test_hostile_indices(folder, index):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(index, encoding="latin-1")
    with pytest.raises(NGramFormatError, match=r"model\.safetensors\.index\.json"):
        NGramLM.from_pretrained(folder)


def test_nothing_is_copied(lm, folder):
    """The tensors lie at the places of the file, in memory that the process shares with it."""
    path = folder / "model.safetensors"
    mapped = NGramLM.from_pretrained(folder, mmap=True)
    tensors = mapped.searched
    mappings = Path("/proc/self/maps")
    if not mappings.exists():
        pytest.skip("/proc/self/maps is Linux's")
    lines = [line.split() for line in mappings.read_text().splitlines() if line.endswith(str(path))]
    ranges = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
    for tensor in tensors:
        assert any(first <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= last for first, last in ranges)
    with pytest.MonkeyPatch.context() as patch:  # nor does making a model of tensors copy them
        patch.setattr(torch.Tensor, "__deepcopy__", lambda *_: pytest.fail("a tensor was copied"))
        assert NGramLM(mapped.parts).searched.arc_weights.data_ptr() == tensors.arc_weights.data_ptr()
