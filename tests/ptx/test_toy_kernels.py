"""The emulator tells of what kernels mustn't do, with the line where they do it, and of nothing else."""

import inspect
import re

import pytest
import torch
from interpreted import IS_INTERPRETED

if not IS_INTERPRETED:
    pytest.skip("no Triton, or a GPU", allow_module_level=True)

import ptx
import toy_kernels as toys
from ptx import driver, program

from hf_ngpulm.automaton.gpu import EXACT


@pytest.fixture(autouse=True)
def several_orders():
    with ptx.running(schedules=(0, 1, 2, 3)):
        yield


def lines_of(kernel, text: str) -> str:
    """The place of a kernel's line, as it is told."""
    lines, begin = inspect.getsourcelines(kernel.fn)
    return rf"ptx/\w+\.py:{begin + next(number for number, line in enumerate(lines) if text in line)}\b"


def told(*parts: str) -> str:
    return r"[\s\S]*".join(parts)


def test_what_is_right_runs():
    x, y, out = torch.randn(1000), torch.randn(1000), torch.empty(1000)
    toys.add[(4,)](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y)
    toys.total[(1,)](x, out[:1], 1000, BLOCK=256)
    assert out[0] == pytest.approx(float(x.sum()), abs=1e-3)
    toys.sort[(1,)](x[:512], out[:512], BLOCK=512)
    assert torch.equal(out[:512], x[:512].sort().values)


def test_threads_that_fuse_their_own_products_disagree_about_a_sum():
    """Thread 0 has fma(a, b, c * d), thread 16 has fma(c, d, a * b). The project's kernels are compiled without (`EXACT`)."""
    x, y = torch.randn(2, 128, generator=torch.Generator().manual_seed(2))
    out = torch.empty(128)
    toys.dot[(1,)](x, y, out[:32], BLOCK=32, num_warps=1, enable_fp_fusion=True)
    assert len(out[:32].unique()) == 2
    with pytest.raises(ptx.PTXError, match=r"a race: written twice, .*: shared memory"):
        toys.dot[(1,)](x, y, out, BLOCK=128, enable_fp_fusion=True)
    for size, warps in ((32, 1), (128, 4)):
        toys.dot[(1,)](x, y, out[:size], BLOCK=size, num_warps=warps, **EXACT)
        assert len(out[:size].unique()) == 1


def test_places_that_others_write_need_a_barrier():
    x, scratch, out = torch.randn(512), torch.zeros(512), torch.empty(512)
    toys.reverse[(1,)](x, scratch, out, BLOCK=512, BARRIER=True)
    assert torch.equal(out, x.flip(0))
    written, read = lines_of(toys.reverse, "store(scratch"), lines_of(toys.reverse, "store(out")
    with pytest.raises(ptx.PTXError, match=told("a race: read after a write", "scratch", written, read)):
        toys.reverse[(1,)](x, scratch, out, BLOCK=512, BARRIER=False)
    # Within a warp too: lanes needn't go on together.
    with pytest.raises(ptx.PTXError, match="a race"):
        toys.reverse[(1,)](x, scratch, out, BLOCK=32, BARRIER=False, num_warps=1)
    with pytest.raises(ptx.PTXError, match="a race"):  # not because results differ: the values were there before
        toys.reverse[(1,)](torch.zeros(512), scratch.zero_(), out, BLOCK=512, BARRIER=False)


def test_barriers_of_triton_itself_order_nothing_but_its_own_memory():
    x, out = torch.randn(512), torch.empty(512)
    with pytest.raises(ptx.PTXError, match=told("a race: read after a write", "scratch")):
        toys.rotate_through_a_sum[(1,)](x, torch.zeros(512), out, BLOCK=512)


def test_places_that_others_have_read_need_a_barrier():
    x, out = torch.zeros(1, dtype=torch.int32), torch.empty(128, dtype=torch.int32)
    toys.count_up[(1,)](x, out, BARRIER=True)
    assert x == 1 and not out.any()
    read, written = lines_of(toys.count_up, "load(x"), lines_of(toys.count_up, "store(x")
    with pytest.raises(ptx.PTXError, match=told("a race: written after a read", read, written)):
        toys.count_up[(1,)](x, out, BARRIER=False)


def test_programs_race_with_each_other():
    out = torch.zeros(400, dtype=torch.int32)
    toys.overlap[(3,)](out, STEP=128)
    assert torch.equal(out[:384], torch.arange(3, dtype=torch.int32).repeat_interleave(128))
    with pytest.raises(ptx.PTXError, match=told("a race: written twice", "program 0", "program 1")):
        toys.overlap[(3,)](out, STEP=127)


def test_shared_memory_needs_barriers(monkeypatch):
    """Triton puts them in: here they are taken out of what it has compiled."""
    monkeypatch.setattr(driver, "Code", lambda text, known: program.Code(re.sub(r"bar\.sync\s+0;", "", text), known))
    alike = type(toys.sort)(toys.sort.fn)  # launchers are kept
    with pytest.raises(ptx.PTXError, match=r"a race: .*: shared memory"):
        alike[(1,)](torch.randn(512), torch.empty(512), BLOCK=512)


@pytest.mark.parametrize("first, count", [(-1, 32), (1, 32), (0, 31)])
def test_tensors_have_bounds_even_within_larger_ones(first, count):
    whole, out = torch.randn(40), torch.empty(32)
    places = torch.arange(32, dtype=torch.int32) + first
    toys.gather[(1,)](whole[4:36], places - first, out)
    assert torch.equal(out, whole[4:36])
    where = "byte -4 of" if first < 0 else f"byte {4 * count} of"
    with pytest.raises(ptx.PTXError, match=told("a load out of bounds", where, lines_of(toys.gather, "load(x"))):
        toys.gather[(1,)](whole[4 : 4 + count], places, out)


def test_stores_have_bounds():
    x, out = torch.ones(1000), torch.zeros(1000)
    with pytest.raises(ptx.PTXError, match=r"a store out of bounds.*: out, byte 3996 of 3996"):
        toys.add[(4,)](x, x, out[:999], 1000, BLOCK=256)
    assert out[999] == 0


def test_what_nobody_has_written_is_noticed():
    places, out = torch.arange(32, dtype=torch.int32), torch.empty(32)
    for x in (torch.empty(32), torch.empty_like(out), out.new_empty(32)):
        with pytest.raises(ptx.PTXError, match="a load of what nobody has written"):
            toys.gather[(1,)](x, places, out)


def test_loops_without_an_end_are_noticed():
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with ptx.running(limit=10_000), pytest.raises(ptx.PTXError, match="an endless loop"):
        toys.wait_for[(1,)](flag, out)


def test_threads_that_wait_for_each_other():
    body = """
	mov.u32 %r1, %tid.x;
	setp.lt.s32 %p1, %r1, 32;
	@%p1 bra $one;
	bar.sync 0;
	{} bar.sync 0;
$one:
	{}
	ret;"""
    with pytest.raises(ptx.PTXError, match="threads that meet at different barriers"):
        toys.run_ptx(body.format("//", "bar.sync 0;"))
    # Lanes that wait for one that is at another place:
    with pytest.raises(ptx.PTXError, match="a deadlock"):
        toys.run_ptx(
            """
	mov.u32 %r1, %tid.x;
	setp.eq.b32 %p1, %r1, 3;
	@%p1 bra $one;
	bar.warp.sync -1;
	bar.sync 0;
$one:
	bar.sync 0;
	bar.warp.sync -1;
	ret;"""
        )


def test_threads_of_a_warp_may_part():
    """And each goes its way: lanes count down from where they are."""
    found = toys.run_ptx(
        """
	ld.param.b64 %rd1, [toy_param_0];
	mov.u32 %r1, %tid.x;
	mad.wide.s32 %rd2, %r1, 4, %rd1;
	mov.b32 %r2, 0;
$again:
	add.s32 %r2, %r2, 2;
	add.s32 %r1, %r1, -1;
	setp.ge.s32 %p1, %r1, 0;
	@%p1 bra $again;
	shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;
	st.global.b32 [%rd2+0], {%r3};
	ret;"""
    )
    assert torch.equal(found, 2 * (1 + (torch.arange(64, dtype=torch.int32) ^ 1)))


@pytest.mark.parametrize("line", ["atom.global.add.u32 %r1, [%rd1], 1;", "bar.sync 1, 32;", "add.cc.s32 %r1, %r1, 1;"])
def test_other_instructions_are_refused_by_name(line):
    with pytest.raises(ptx.PTXError, match="toy: no instruction that is known here: " + re.escape(line[:-1])):
        toys.run_ptx(f"\t{line}\n\tret;")
