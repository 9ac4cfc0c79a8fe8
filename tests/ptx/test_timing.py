"""The model of time says of small kernels what can be counted by hand."""

import pytest
from interpreted import IS_INTERPRETED

if not IS_INTERPRETED:
    pytest.skip("no Triton, or a GPU", allow_module_level=True)

import problems
import ptx
import toy_kernels as toys
from ptx import timing

ADDRESS = """
	ld.param.b64 %rd1, [toy_param_0];
	mov.u32 %r1, %tid.x;
	mad.wide.s32 %rd2, %r1, {}, %rd1;
"""
LOAD, USE = "ld.global.b32 {%r2}, [%rd2];\n", "add.s32 %r3, %r2, 1;\n"


def modelled(body: str, warps: int = 1, programs: int = 1, size: int = 64) -> timing.Timed:
    with ptx.timed() as ran:
        toys.run_ptx(body + "\n\tret;", warps, programs, size)
    return ran[0].timed


def cycles(body: str, warps: int = 1, size: int = 64) -> float:
    return modelled(body, warps, size=size).counts.cycles


def many(line: str, count: int) -> str:
    return "".join(line.format(to=number, last=number - 1) for number in range(1, count + 1))


@pytest.mark.parametrize(
    "line, each",
    [
        ("add.s32 %r{to}, %r{last}, 1;\n", 4),  # each waits for the one before
        ("add.s32 %r{to}, %r0, 1;\n", 2),  # a pipe takes half a warp's integers a cycle
        ("add.f32 %r{last}, %r{last}, %r{last};\n", 1),
        ("add.f32 %r{to}, %r{last}, 0f00000000;\n", 4),
        ("mov.b32 %r{to}, %r{last};\n", 0),  # registers are named
        ("@%p1 add.s32 %r{to}, %r0, 1;\n", 1),  # nothing but the slot
        ("bar.sync 0;\n", 17),  # its slot, and 16
    ],
)
def test_instructions(line, each):
    assert cycles(many(line, 30)) - cycles(many(line, 20)) == 10 * each


def test_warps_share_four_schedulers():
    body = many("add.f32 %r{last}, %r{last}, %r{last};\n", 30)
    assert [cycles(body, warps) for warps in (1, 4, 5, 8, 9)] == [30, 30, 60, 60, 90]


def test_what_waits_leaves_its_slots_to_others():
    """Two warps of a scheduler are as fast as one, if they wait most of the time."""
    body = many("add.f32 %r{to}, %r{last}, 0f00000000;\n", 30)
    assert cycles(body, 5) - cycles(body, 1) == 1


@pytest.mark.parametrize("step, sectors, lines", [(0, 1, 1), (4, 4, 1), (32, 32, 8), (128, 32, 32)])
def test_loads_wait_for_their_sectors(step, sectors, lines):
    found = modelled(ADDRESS.format(step) + LOAD + USE, size=1024)
    counts = found.counts
    assert (counts.sectors, counts.to_l2, counts.from_dram) == (sectors, sectors, sectors)
    # The address takes 4 cycles; lines pass the port one by one, then their sectors come by two a cycle; 1 for the use.
    assert counts.cycles == 4 + (lines - 1) + 479 + sectors / 2 + 1


def test_caches_keep_what_was_loaded():
    first, again = (cycles(ADDRESS.format(4) + (LOAD + USE) * count) for count in (1, 2))
    assert again - first == 41 + 1  # and the slot of the use
    counts = modelled(ADDRESS.format(4) + LOAD + USE, programs=2).counts  # the second finds it in L2
    assert (counts.to_l2, counts.from_dram) == (8, 4)
    assert counts.longest == first and counts.cycles - first == first - (479 - 263)


def test_barriers_wait_for_the_last():
    """The second warp goes around a chain of additions."""
    late = many("add.s32 %r{to}, %r{last}, 1;\n", 10)
    body = "mov.u32 %r0, %tid.x;\nsetp.lt.s32 %p1, %r0, 32;\n@%p1 bra $on;\n" + late + "$on:\nbar.sync 0;\n"
    alone, both = cycles(body, 1), cycles(body, 2)
    # setp 4, the jump 8, the barrier's slot and 16; in place of the jump its slot, and 10 additions of which the last is issued
    assert alone == 4 + 8 + 1 + 16 and both == 4 + 1 + (4 * 9 + 1) + 1 + 16
    assert modelled(body, 2).counts.barriers == 1


def test_launches_take_as_many_programs_as_fit():
    found = modelled(many("add.s32 %r{to}, %r{last}, 1;\n", 30), programs=3)
    one, room = found.counts.cycles / 3, found.resident * timing.PROCESSORS
    assert found.resident == 32
    assert found.cycles(room / 32) == one and found.cycles(5 * room) > 4 * one
    # Two integers take 4 schedulers a cycle: 32 programs of 30 take 480, longer than one that waits.
    assert found.cycles(room) == 32 * 30 * 2 / 4


def test_lines_of_a_kernel_are_those_of_its_source():
    with ptx.timed() as ran:
        problems.queries()
    launch = max(ran, key=lambda launch: launch.timed.cycles())
    (share, place), *others = launch.timed.lines()
    assert 0 < share < 1 and place.startswith("automaton/gpu.py:") and all(other <= share for other, _ in others)
