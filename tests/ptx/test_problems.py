"""Every kernel of the project, with several warps, in several orders: equal to the reference, and without a fault."""

import pytest
from interpreted import IS_INTERPRETED

if not IS_INTERPRETED:
    pytest.skip("no Triton, or a GPU", allow_module_level=True)

import problems
import ptx
import static_kernels
from compile_ahead import ONES, multiples_of_16

from hf_ngpulm.automaton.gpu import EXACT
from hf_ngpulm.search.attention_step import gpu as attention

# These are launched with one warp, always.
NARROW = {"_step_kernel", "_walk_kernel", "_states_after_kernel", "_gather_kernel", "_read_kernel", "_follow_kernel"}
NARROW |= {"_best_kernel", "_label_kernel", "_peaks_kernel"}
KERNELS = {
    "queries": {"_rows_kernel", "_step_kernel", "_walk_kernel", "_states_after_kernel"},
    "greedy_ctc": {"_best_kernel", "_label_kernel"},
    "beam_ctc": {"_peaks_kernel", "_search_kernel"},
    "beam_ctc_alone": {"_peaks_kernel", "_search_kernel"},
    "transducer": {"_window_kernel", "_internal_kernel", "_gather_kernel"},
    "alsd": {"_extend_kernel", "_choose_kernel", "_internal_kernel", "_gather_kernel"},
    "alsd_of_two": {"_gather_kernel"},
    "aes": {"_extend_kernel", "_choose_kernel", "_internal_kernel"},
    "attention": {"_add_kernel", "_share_kernel", "_read_kernel", "_follow_kernel"},
    "loops": {"_end_loops_kernel"},
}


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [1, 1000, 152_000])
@pytest.mark.parametrize("problem", [problems.queries, problems.attention])
def test_odd_vocabularies(problem, vocab_size):
    problem(vocab_size)


@pytest.mark.slow
@pytest.mark.parametrize("problem", [problems.greedy_ctc, problems.beam_ctc, problems.transducer])
def test_large_vocabularies_of_searches(problem):
    problem(152_000)


@pytest.mark.slow
@pytest.mark.parametrize("strategy, durations", [("alsd", (0, 1, 2)), ("aes", None)])
def test_large_vocabularies_of_beams(strategy, durations):
    problems.transducer_beam(strategy, durations, 3, 152_000)


def test_a_row_in_as_many_tiles_as_on_a_gpu(monkeypatch):
    """A sum over tiles has an element a thread: all threads of a warp, who all store it, must get the same bits."""
    monkeypatch.setattr(attention, "processors", lambda device: 132)
    problems.attention(51_865)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", problems.PROBLEMS)
def test_more_orders_on_several_kinds_of_gpus(name, capability):
    with ptx.running(schedules=(0, 1, 2, 3, 4), capability=capability):
        problems.PROBLEMS[name]()


@pytest.mark.parametrize("name", problems.PROBLEMS)
def test_kernels_equal_the_reference(name):
    with ptx.running() as ran:
        problems.PROBLEMS[name]()
    assert {each.name for each in ran} >= KERNELS[name]
    assert {each.name for each in ran if each.warps >= 4} >= KERNELS[name] - NARROW
    assert not KERNELS[name] - kernels_launched_as_they_are_compiled_ahead()


def kernels_launched_as_they_are_compiled_ahead() -> set[str]:
    """Those of which Triton knew what `compile_ahead` tells it."""
    found = set()
    for kernel, _, constants, _ in static_kernels.kernels("", [80]):
        assert constants.items() >= EXACT.items()
        for compiled in kernel.device_caches[ptx.settings.capability][0].values():
            kinds = compiled.src.signature
            known = {place: facts for place, facts in compiled.src.attrs.items() if facts}
            assert not compiled.metadata.enable_fp_fusion  # see `EXACT`
            if known == multiples_of_16(kernel, kinds) and all(kinds[name] == "constexpr" for name in ONES if name in kinds):
                found.add(kernel.fn.__name__)
    return found
