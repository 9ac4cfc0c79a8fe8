"""What breaks the first time that code meets a real GPU: types and layouts of tensors, other devices and streams, sizes beyond
32 bits, waiting for the device, and a missing native core.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from automata import packed_automaton
from on_gpu import DEVICE, ENGINE, HALVES, STANDS_IN, needs_cuda, sized

from hf_ngpulm import CTCDecoder, LogLinear, NGramLM, StreamingDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.search import ctc_beam as beam
from hf_ngpulm.search import ctc_greedy as greedy

pytestmark = pytest.mark.gpu
VOCAB_SIZE = 60
FRAMES = sized(30, 5)


@pytest.fixture(scope="module")
def cpu_lm():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCAB_SIZE, (200, 9), generator=generator).tolist()
    return NGramLM.train(tokens, vocab_size=VOCAB_SIZE, order=4)


@pytest.fixture(scope="module")
def lm(cpu_lm):
    moved = packed_automaton([cpu_lm.automaton]).to(DEVICE)
    moved.engine = ENGINE
    return moved


def searches(lm, device=DEVICE, batch_size=3, frames=FRAMES, dtype=torch.float32):
    """Arguments of both CTC searches."""
    torch.manual_seed(0)
    logits = torch.randn(batch_size, frames, VOCAB_SIZE + 1).to(device, dtype)
    lengths = torch.full((batch_size,), frames, dtype=torch.int32, device=device)
    states = lm.initial_states(batch_size)[:, None].contiguous().to(device)
    weights = torch.full((batch_size, 1), 0.5, device=device)
    before = torch.full((batch_size, 2), VOCAB_SIZE, dtype=torch.int32, device=device)
    tensors = [tensor.to(device) for tensor in lm.tensors]
    classes = VOCAB_SIZE, VOCAB_SIZE
    label_rules = greedy.LabelRules(weights, 3 * weights[:, 0], *classes, "stay")
    beam_rules = beam.BeamRules(weights, weights[:, 0], -weights[:, 0], *classes, 20.0)
    of_greedy = [tensors, logits, lengths, states, before, label_rules, ENGINE]
    return of_greedy, [tensors, beam.initial_state(4, states), logits, lengths, beam_rules, ENGINE]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_states_of_any_integers_and_strides(lm, dtype):
    states = torch.arange(12, device=DEVICE).to(dtype)
    tokens = (states * 3) % VOCAB_SIZE
    for given, picked in ((states, slice(None)), (states[::2], slice(None, None, 2)), (states.cpu(), slice(None))):
        rows = tokens[picked]
        for found, expected in ((lm.scores(given), lm.scores(states)[picked]), (lm.step(given, rows)[0], None)):
            wanted = lm.step(states, tokens)[0][picked] if expected is None else expected
            assert torch.equal(found, wanted)


@needs_cuda
def test_kernels_run_on_the_stream_of_the_caller(lm):
    """What is on another stream isn't waited for."""
    states = torch.arange(64, device=DEVICE, dtype=torch.int32)
    expected, stream = lm.scores(states), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = states.clone()
        found = lm.scores(late)
    stream.synchronize()
    assert torch.equal(found, expected)


@needs_cuda
def test_tensors_on_another_gpu_than_the_current_one(cpu_lm):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    found = []
    for device in ("cuda:0", "cuda:1"):
        lm = packed_automaton([cpu_lm.automaton]).to(device)
        states = torch.arange(9, device=device, dtype=torch.int32)
        of_greedy, of_beam = searches(lm, device)
        results = [
            lm.scores(states),
            *lm.step(states, states),
            greedy.ctc_greedy(*of_greedy).labels,
            beam.ctc_beam(*of_beam)[1].labels,
        ]
        assert all(result.device == torch.device(device) for result in results)
        found.append([result.cpu() for result in results])
    for ours, expected in zip(*found):
        assert torch.equal(ours, expected)


@needs_cuda
def test_searches_never_wait_for_the_device(lm):
    states = torch.arange(9, device=DEVICE, dtype=torch.int32)
    of_greedy, of_beam = searches(lm)
    sequences, lengths = states.repeat(9, 1).long(), torch.full((9,), 9, device=DEVICE)

    def everything():
        lm.scores(states), lm.advance(states), lm.step(states, states), lm.final_scores(states)
        lm.states_after(sequences, lengths), lm.score_tokens(sequences, lengths)
        greedy.ctc_greedy(*of_greedy), beam.ctc_beam(*of_beam)

    everything()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        everything()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("frames", [0, 1])
@pytest.mark.parametrize("batch_size", [0, 2])
def test_nothing_to_decode(lm, batch_size, frames):
    of_greedy, of_beam = searches(lm, batch_size=batch_size, frames=frames)
    assert greedy.ctc_greedy(*of_greedy).labels.shape == (batch_size, frames)
    assert beam.ctc_beam(*of_beam)[1].labels.shape == (batch_size, frames, 4)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
def test_logits_of_any_precision_and_layout(lm, dtype):
    of_greedy, of_beam = searches(lm)
    logits = of_greedy[1].to(dtype)
    expected = [greedy.ctc_greedy(*of_greedy[:1], logits.float(), *of_greedy[2:]).labels]
    expected.append(beam.ctc_beam(*of_beam[:2], logits.float(), *of_beam[3:])[1].labels)
    for given in (logits.transpose(0, 1).contiguous().transpose(0, 1), logits.transpose(1, 2).contiguous().transpose(1, 2)):
        assert torch.equal(greedy.ctc_greedy(*of_greedy[:1], given, *of_greedy[2:]).labels, expected[0])
        assert torch.equal(beam.ctc_beam(*of_beam[:2], given, *of_beam[3:])[1].labels, expected[1])


@needs_cuda
def test_more_scores_than_32_bits_can_count():
    """2.2e9 of them: the last rows are those of the same states at the beginning."""
    vocab_size = 151_936
    lm = NGramLM.train([list(range(0, vocab_size, 7))], vocab_size=vocab_size, order=2).to(DEVICE)
    rows = 2**31 // vocab_size + 300
    if torch.cuda.mem_get_info()[0] < 5 * rows * vocab_size:
        pytest.skip("needs 12 GB")
    states = torch.randint(0, lm.num_states, (rows,), dtype=torch.int32, device=DEVICE)
    states[-9:] = states[:9]
    scores = lm.scores(states)
    assert torch.equal(scores[-9:], scores[:9])
    assert torch.equal(scores[-9:], lm.scores(states[-9:]))


@needs_cuda
def test_more_logits_than_32_bits_can_count(lm):
    """Batches of hours: the last row is decoded as it is alone."""
    frames, classes, batch_size = 6000, VOCAB_SIZE + 1, 6000
    if torch.cuda.mem_get_info()[0] < 3 * frames * classes * batch_size:
        pytest.skip("needs 7 GB")
    logits = torch.randn(batch_size, frames, classes, device=DEVICE, dtype=torch.float16)
    lengths = torch.zeros(batch_size, dtype=torch.int32, device=DEVICE)
    lengths[-2:] = frames
    states = lm.initial_states(batch_size)[:, None].contiguous()
    weights = torch.full((batch_size, 1), 0.5, device=DEVICE)
    before = torch.full((batch_size, 2), VOCAB_SIZE, dtype=torch.int32, device=DEVICE)

    def labelled(rows):
        rules = greedy.LabelRules(weights[rows], 3 * weights[rows, 0], VOCAB_SIZE, VOCAB_SIZE, "stay")
        of_rows = (logits[rows], lengths[rows], states[rows], before[rows], rules)
        return greedy.ctc_greedy(list(lm.tensors), *of_rows).labels[-2:]

    assert torch.equal(labelled(slice(None)), labelled(slice(batch_size - 2, batch_size)))


@pytest.mark.parametrize("num_beams", [1, 8])
def test_rows_with_models_of_their_own(num_beams):
    """A list of language models, None among them, and models that are on another device than the logits."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    generator = torch.Generator().manual_seed(0)
    models = [
        NGramLM.train(torch.randint(0, 256, (50, 9), generator=generator).tolist(), vocab_size=256, order=3) for _ in range(2)
    ]
    logits = torch.randn(3, sized(20, 3), 257, generator=generator)
    for lm in ([models[0], None, models[1]], LogLinear(models, [1.0, 0.5])):
        decoder = CTCDecoder(tokenizer, lm, 0.5, num_beams=num_beams)
        expected = [best[0].token_ids for best in decoder(logits)]
        assert [best[0].token_ids for best in decoder(logits.to(DEVICE))] == expected
        models[0].to(DEVICE)
        assert [best[0].token_ids for best in decoder(logits.to(DEVICE))] == expected
        models[0].to("cpu")


def test_streams_on_a_device_without_a_number():
    """`cuda` and `cuda:0` are the same."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    lm = NGramLM.train(torch.randint(0, 256, (50, 9)).tolist(), vocab_size=256, order=3).to(DEVICE)
    logits = torch.randn(2, sized(20, 3), 257, device=DEVICE)
    decoder = CTCDecoder(tokenizer, lm, 0.5)
    streams = StreamingDecoder(decoder, max_streams=2, device=DEVICE)
    sids = [streams.open(), streams.open()]
    streams.step({sid: logits[row] for row, sid in enumerate(sids)})
    assert [streams.close(sid)[0].token_ids for sid in sids] == [best.token_ids for (best,) in decoder(logits)]


WITHOUT_CORE = f"""
if {STANDS_IN}:
    import ptx
    ptx.install()
import torch
from transformers import AutoTokenizer
from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.common.bundled import bundled
lm = NGramLM.from_pretrained(bundled("examples/speech/harbour/lm"), device={sized(DEVICE, "cpu")!r})
states = lm.states_after(torch.randint(0, lm.vocab_size, (3, 9)))
lm.scores(states), lm.advance(states), lm.step(states, states * 0), lm.final_scores(states)
tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
logits = torch.randn(2, 3, lm.vocab_size + 1, device={sized(DEVICE, "cpu")!r})
assert len(CTCDecoder(tokenizer, lm, num_beams=1)(logits)) == 2
"""


@pytest.mark.slow
def test_greedy_search_does_without_the_native_core(tmp_path):
    environment = {**os.environ, "HF_NGPULM_NATIVE": str(tmp_path / "missing.so"), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(__file__).parents[2] / name) for name in (".", "tests/support"))
    environment |= {"HF_NGPULM_ENGINE": ENGINE}
    result = subprocess.run([sys.executable, "-c", WITHOUT_CORE], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
