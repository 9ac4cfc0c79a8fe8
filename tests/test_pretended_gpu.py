"""Nothing mixes tensors of a GPU with those of the CPU, or asks a CPU's engine for what is on a GPU.

What is found is what the CPU finds. (Times, types of numbers and capturing of graphs need a real one: tests/gpu.)
"""

from __future__ import annotations

import copy

import pytest
import torch
from interpreted import IS_INTERPRETED

if not IS_INTERPRETED:
    pytest.skip("no Triton, or a GPU", allow_module_level=True)

from pretended_gpu import MixedDevicesError, OnGPU, pretended_gpu
from toys import Toy
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, GraphDecoder, LogLinear, NGramLM, NGramLogitsProcessor, StreamingDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.search.ctc_graph import GraphRules, GraphState, graph_search, initial_state
from hf_ngpulm.search.networks.buffers import STEPS

BLANK = 256
CONTEXTS = [["call anna", "new york"], None, {"weather": 2.0}]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lms():
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(0, 256, (2, 40, 9), generator=generator).tolist()
    return [NGramLM.train(text, vocab_size=256, order=3) for text in texts]


def there(thing):
    return copy.deepcopy(thing).to("cuda")


def frames_of(rows, length, size):
    generator = torch.Generator().manual_seed(0)
    frames = 2 * torch.randn(rows, length, size, generator=generator)
    if size == BLANK + 1:
        frames[..., BLANK] += 4 * torch.rand(frames.shape[:2], generator=generator)
    return frames


def same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert [each.token_ids for each in ours] == [each.token_ids for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=2e-2)


def check(here, beyond, size, contexts, length=5):
    """A decoder's batch, and streams of its rows whose contexts change, on the CPU and beyond."""
    frames = frames_of(3, length, size)

    def decoded(decoder, frames):
        call = decoder.decode if isinstance(decoder, TransducerDecoder) else decoder
        yield call(frames, torch.tensor([length, 2, length], device=frames.device), contexts)
        streams = StreamingDecoder(decoder, max_streams=3, device=frames.device.type)
        sids = [streams.open(phrases=context) for context in contexts or [None] * 3]
        streams.step({sid: frames[row, :2] for row, sid in enumerate(sids)})
        if contexts is not None:
            streams.set_contexts({sids[1]: contexts[0], sids[2]: None})
        streams.step({sid: frames[row, 2:] for row, sid in enumerate(sids)})
        yield [streams.close(sid) for sid in sids]

    expected = list(decoded(here, frames))
    with pretended_gpu():
        found = list(decoded(beyond(), frames.to("cuda")))
    for ours, theirs in zip(found, expected, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("contexts", [None, CONTEXTS], ids=["alone", "contexts"])
@pytest.mark.parametrize("num_beams", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_ctc(tokenizer, lms, num_beams, contexts):
    here = CTCDecoder(tokenizer, lms[0], 0.5, num_beams=num_beams)
    check(here, lambda: CTCDecoder(tokenizer, there(lms[0]), 0.5, num_beams=num_beams), 257, contexts)


@pytest.mark.parametrize("num_beams", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_language_models_of_rows_and_several_of_one(tokenizer, lms, num_beams):
    """Some of them on the CPU: they are copied."""
    for given in (lambda a, b: [a, None, b], lambda a, b: LogLinear([a, b], [1.0, 0.5])):
        here = CTCDecoder(tokenizer, given(*lms), torch.tensor([0.5, 0.3, 0.2]), num_beams=num_beams)
        frames = frames_of(3, 4, 257)
        expected = here(frames)
        with pretended_gpu():
            lm = given(there(lms[0]), lms[1])
            beyond = CTCDecoder(tokenizer, lm, torch.tensor([0.5, 0.3, 0.2]), num_beams=num_beams)
            same(beyond(frames.to("cuda")), expected)


def test_graphs(tokenizer, lms):
    here = GraphDecoder(tokenizer, lms[0], 0.5, max_active=4)
    check(here, lambda: GraphDecoder(tokenizer, there(lms[0]), 0.5, max_active=4), 257, CONTEXTS)


def test_graphs_are_searched_on_the_cpu(tokenizer, lms):
    """Decoders copy the logits there, once; `graph_search` also brings its results back."""
    frames, lengths = frames_of(3, 5, 257), torch.tensor([5, 2, 0], dtype=torch.int32)
    state = initial_state(4, lms[0].initial_states(3)[:, None])
    rules = torch.full((3, 1), 0.5), torch.zeros(3, 257)
    expected = graph_search(lms[0].tensors, state, frames, lengths, GraphRules(*rules, BLANK, 256))
    decoder = GraphDecoder(tokenizer, lms[0], 0.5, max_active=4)
    hypotheses = decoder(frames, lengths)
    with pretended_gpu() as gpu:
        given = (there(lms[0]).tensors, GraphState(*map(there, state)), *map(there, (frames, lengths)))
        found = graph_search(*given, GraphRules(*map(there, rules), BLANK, 256))
        for ours, theirs in zip(sum(found, ()), sum(expected, ()), strict=True):
            assert isinstance(ours, OnGPU) and torch.equal(ours.cpu(), theirs)
        decoder = GraphDecoder(tokenizer, there(lms[0]), 0.5, max_active=4)
        on_gpu = frames.to("cuda")
        for batch in range(2):
            same(decoder(on_gpu, lengths), hypotheses)
            assert not gpu.kernels and (batch == 0 or len(gpu.waits) == 1), gpu.waits  # the first also copies the automaton
            gpu.forget()


TDT, ALSD, AES = (0, 1, 2), {"strategy": "alsd", "num_beams": 2}, {"strategy": "aes", "num_beams": 2}
SLOWER = [(None, {}), (TDT, {}), (None, ALSD), (TDT, ALSD), (None, AES)]


@pytest.mark.parametrize(("durations", "options"), [pytest.param(*each, marks=pytest.mark.slow) for each in SLOWER], ids=str)
def test_transducers(tokenizer, lms, durations, options):
    model = Toy(257, BLANK, durations, seed=4, size=6)
    here = TransducerDecoder(model, tokenizer, lms[0], 0.5, **options)

    def beyond():
        return TransducerDecoder(copy.deepcopy(model).to("cuda"), tokenizer, there(lms[0]), 0.5, **options)

    check(here, beyond, 6, CONTEXTS, 3)


@pytest.mark.parametrize("options", [{"strategy": "greedy"}, ALSD], ids=["greedy", "alsd"])
def test_a_streams_step_waits_once_a_block_and_for_its_check(tokenizer, lms, options):
    model = Toy(257, BLANK, TDT, seed=4, size=6)
    frames = frames_of(3, 4, 6)
    with pretended_gpu() as gpu:
        decoder = TransducerDecoder(copy.deepcopy(model).to("cuda"), tokenizer, there(lms[0]), 0.5, **options)
        streams = StreamingDecoder(decoder, max_streams=3, device="cuda")
        sids = [streams.open() for _ in range(3)]
        on_gpu = frames.to("cuda")
        for _ in range(2):
            gpu.forget()
            streams.step({sid: on_gpu[row] for row, sid in enumerate(sids)})
            blocks = max(gpu.kernels.count(name) for name in ("_window_kernel", "_choose_kernel")) // STEPS
            assert blocks and len(gpu.waits) == blocks + 1, gpu.waits


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 3}, {"max_active": 4}], ids=str)
def test_a_step_of_ctc_streams_waits_once(tokenizer, lms, options):
    frames, kind = frames_of(3, 4, 257), GraphDecoder if "max_active" in options else CTCDecoder
    with pretended_gpu() as gpu:
        streams = StreamingDecoder(kind(tokenizer, there(lms[0]), 0.5, **options), max_streams=3, device="cuda")
        sids, on_gpu = [streams.open() for _ in range(3)], frames.to("cuda")
        streams.step({sid: on_gpu[row] for row, sid in enumerate(sids)})
        gpu.forget()
        streams.step({sid: on_gpu[row] for row, sid in enumerate(sids)})
        assert len(gpu.waits) == 1, gpu.waits


class Bare:
    """What a processor asks a model for."""

    class config:
        model_type, is_encoder_decoder, eos_token_id, decoder_start_token_id = "speech_to_text", True, 258, 257

    generation_config = None

    def modules(self):
        return []


@pytest.mark.parametrize("phrases", [None, CONTEXTS], ids=["alone", "contexts"])
def test_a_logits_processor(tokenizer, lms, phrases):
    scores = torch.randn(3, 260, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[257, *([5, 6] * 5)]]).repeat(3, 1)
    ids[1, 3:] = 9
    expected = NGramLogitsProcessor(lms[0], 0.3, model=Bare(), phrases=phrases, tokenizer=tokenizer)(ids, scores.clone())
    with pretended_gpu() as gpu:
        processor = NGramLogitsProcessor(there(lms[0]), 0.3, model=Bare(), phrases=phrases, tokenizer=tokenizer)
        device_ids = ids.to("cuda")
        processor(device_ids, scores.to("cuda"))
        gpu.forget()
        found = processor(device_ids, scores.to("cuda"))
        assert not gpu.waits, gpu.waits
        assert gpu.kernels.count("_add_kernel") == (1 if phrases is None else 2)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_what_would_break_is_noticed():
    with pretended_gpu() as gpu:
        tensor = torch.ones(3, device="cuda")
        assert isinstance(tensor, OnGPU) and tensor.device == torch.device("cuda:0")
        with pytest.raises(MixedDevicesError):
            tensor + torch.ones(3)
        with pytest.raises(MixedDevicesError):
            torch.ones(3)[tensor.long()]
        with pytest.raises(TypeError):
            tensor.numpy()
        assert not gpu.waits
        assert float(tensor.sum()) == 3 and len(gpu.waits) == 1
        tensor.add_(1)
        assert tensor.cpu().tolist() == [2.0, 2.0, 2.0]
