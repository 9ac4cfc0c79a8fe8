"""What decoders take for a model's outputs, weights of any size, and decoders that go to other processes."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toys import Modules
from transformers import AutoTokenizer

from hf_ngpulm import (
    CTCDecoder,
    GraphDecoder,
    InvalidLogitsError,
    LogLinear,
    NGramLM,
    PhraseBooster,
    StreamError,
    StreamingDecoder,
    TransducerDecoder,
)
from hf_ngpulm.common.batches import tensor_of
from hf_ngpulm.common.bundled import bundled

TOKENIZER = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
WORDS = Path(__file__).parents[0] / "data" / "kenlm" / "o3.arpa.gz"
CLASSES, BLANK = 257, 256
DECODERS = {
    "ctc greedy": lambda lm, **more: CTCDecoder(TOKENIZER, lm, **more),
    "ctc beam": lambda lm, **more: CTCDecoder(TOKENIZER, lm, num_beams=3, **more),
    "graph": lambda lm, **more: GraphDecoder(TOKENIZER, lm, **more),
    "transducer": lambda lm, **more: TransducerDecoder(Modules(CLASSES, BLANK), TOKENIZER, lm, **more),
    "transducer beam": lambda lm, **more: TransducerDecoder(Modules(CLASSES, BLANK), TOKENIZER, lm, num_beams=3, **more),
}
each = pytest.mark.parametrize("name", list(DECODERS))


@pytest.fixture(scope="module")
def lm():
    return NGramLM.train(["call anna", "what is the time", "new york"], TOKENIZER, order=2)


def outputs(name, seed=0):
    """Two rows of what a decoder takes."""
    width = 6 if "transducer" in name else CLASSES
    return 1.5 * torch.randn(2, 12, width, generator=torch.Generator().manual_seed(seed))


def decoded(decoder, *given, **more):
    call = decoder.decode if isinstance(decoder, TransducerDecoder) else decoder
    return [(best.token_ids, best.score) for (best, *_) in call(*given, **more)]


def as_arrays(rows):
    """The same numbers in other shapes of memory."""
    array = rows.numpy()
    frozen = array.copy()
    frozen.setflags(write=False)
    yield array
    yield frozen
    yield np.asfortranarray(array)
    yield array[:, ::-1][:, ::-1]
    yield array.astype(np.float64)
    yield array.astype(array.dtype.newbyteorder())
    yield array.tolist()
    yield [row.tolist() for row in array]
    yield tuple(array)
    yield [*rows]
    yield [rows[0], array[1]]


@each
def test_arrays_and_lists(name, lm):
    decoder, rows = DECODERS[name](lm), outputs(name)
    expected = decoded(decoder, rows)
    for given in as_arrays(rows):
        assert decoded(decoder, given) == expected
    expected = decoded(decoder, rows, torch.tensor([12, 7]))
    for lengths in ([12, 7], (12, 7), np.array([12, 7])):
        assert decoded(decoder, rows.numpy(), lengths) == expected


@each
def test_what_is_no_outputs(name, lm):
    decoder, rows = DECODERS[name](lm), outputs(name)
    ragged = [rows[0].numpy(), rows[1, :7].numpy()]
    for given, message in (
        (ragged, r"of shapes \(12, \d+\), \(7, \d+\); rows of different lengths are padded"),
        ([rows[0], rows[1, :7]], "rows of different lengths are padded"),
        ([[0.1, 0.2], [0.3]], "got list"),
        ("logits", "should be a tensor, a numpy array or nested lists of numbers, got str"),
        (None, "got NoneType"),
        ([["a", "b"]], "got list"),
        ({"logits": rows}, "got dict"),
        (SimpleNamespace(logits=rows), r"got SimpleNamespace: pass its \.logits"),
        (rows.numpy().astype(np.int64), "floating point"),
        (rows[0].numpy(), "floating point of the shape"),
        ([], "floating point of the shape"),
    ):
        with pytest.raises(InvalidLogitsError, match=message):
            decoded(decoder, given)


@each
def test_streams_take_the_same(name, lm):
    decoder, rows = DECODERS[name](lm), outputs(name)[0]
    expected = decoded(decoder, rows[None])
    for chunks in ((rows[:5].numpy(), rows[5:].numpy().astype(np.float64)), (rows[:5].tolist(), [*rows[5:]])):
        stream = StreamingDecoder(decoder, max_streams=1)
        sid = stream.open()
        for chunk in chunks:
            stream.step({sid: chunk})
        (best, *_) = stream.close(sid)
        assert (best.token_ids, pytest.approx(best.score, abs=1e-4)) == expected[0]
    stream = StreamingDecoder(decoder, max_streams=2)
    good, bad = stream.open(), stream.open()
    with pytest.raises(StreamError, match=f"stream {bad}: a chunk should be a tensor, a numpy array .* got str") as caught:
        stream.step({good: rows.numpy(), bad: "frames"})
    assert list(caught.value.partials) == [good]
    if isinstance(decoder, CTCDecoder | GraphDecoder):
        blocks = decoder.stream(1)
        blocks.add(rows[None, :5].numpy(), [5])
        blocks.add(rows[None, 5:].tolist())
        assert blocks.hypotheses()[0][0].token_ids == expected[0][0]


def test_features_that_are_arrays():
    """What a transducer's encoder is given, too."""

    class Encoding(Modules):
        def encode(self, input_features, attention_mask=None):
            assert input_features.dtype == torch.float32 and attention_mask.dtype == torch.int64
            return input_features, attention_mask.sum(1)

    decoder, rows = TransducerDecoder(Encoding(CLASSES, BLANK), TOKENIZER), outputs("transducer")
    mask = (torch.arange(12) < torch.tensor([[12], [7]])).long()
    expected = [best.token_ids for (best,) in decoder(rows, mask)]
    assert [best.token_ids for (best,) in decoder(rows.numpy().astype(np.float64), mask.tolist())] == expected


def test_a_tensor_is_taken_as_it_is():
    rows = torch.randn(2, 3, requires_grad=True)
    assert tensor_of(rows, "logits") is rows
    array = np.zeros((2, 3), dtype=np.float32)
    assert tensor_of(array, "logits").data_ptr() == array.ctypes.data  # nor are arrays copied that needn't be
    assert tensor_of(array, "logits", torch.device("meta")).device.type == "meta"


def settings_of(name, weight):
    """What a decoder is made with that is a weight, each by itself."""
    names = ["lm_weight", *(["beta"] if name in ("ctc beam", "graph") else [])]
    names += ["discount"] if name == "graph" else ["phrase_weight"]
    names += ["ilm_weight"] if "transducer" in name else []
    return {key: {key: weight, "phrases": ["anna"]} for key in names}


@each
@pytest.mark.parametrize("weight", [1e6, -1e6])
def test_the_largest_weights(name, lm, weight):
    """Scores stay finite."""
    for key, given in settings_of(name, weight).items():
        if key != "discount" or weight > 0:
            assert all(np.isfinite(score) for _, score in decoded(DECODERS[name](lm, **given), outputs(name)))


@each
@pytest.mark.parametrize("weight", [1e38, -1e7, float("nan"), float("inf"), 10**400, True, "1"])
def test_weights_that_are_refused(name, lm, weight):
    """The error names the argument and the value."""
    shown = re.escape(repr(weight)[:9])
    for key, given in settings_of(name, weight).items():
        with pytest.raises(ValueError, match=f"{key} should be a finite number.*, got {shown}"):
            DECODERS[name](lm, **given)
    if isinstance(weight, float):
        with pytest.raises(ValueError, match=r"lm_weight should be .* tensor \[B\] of them, got"):
            DECODERS[name](lm, lm_weight=torch.tensor([1.0, weight], dtype=torch.float64))


@pytest.mark.parametrize("weight", [1e38, float("nan")])
def test_weights_of_parts_that_are_refused(lm, weight):
    for make in (
        lambda: LogLinear([lm], [weight]),
        lambda: PhraseBooster(["anna"], TOKENIZER, weight),
        lambda: PhraseBooster([("anna", weight)], TOKENIZER),
        lambda: StreamingDecoder(DECODERS["ctc beam"](lm), 1).open(lm_weight=weight),
    ):
        with pytest.raises(ValueError, match=r"should be a finite number.*, got (1e\+38|nan)"):
            make()


@each
@pytest.mark.parametrize("composition", [None, "static", "on_the_fly"])
def test_decoders_go_to_other_processes(name, lm, composition):
    """A pickle, also of one that has decoded, decodes alike; so does a deep copy."""
    if composition is not None:
        lm = NGramLM.from_arpa(WORDS, TOKENIZER, units="word", composition=composition)
    if name == "graph" and lm.is_lazy:
        with pytest.raises(ValueError, match="static"):
            DECODERS[name](lm)
        return
    decoder, rows = DECODERS[name](lm, phrases=["anna", "new york"]), outputs(name)
    fresh = pickle.dumps(decoder)
    expected = decoded(decoder, rows)
    assert expected == decoded(decoder, rows, phrases=["anna", "new york"])
    for other in (pickle.loads(fresh), pickle.loads(pickle.dumps(decoder)), copy.deepcopy(decoder)):
        assert decoded(other, rows) == expected
        assert decoded(other.with_phrases(None), rows) == decoded(decoder.with_phrases(None), rows)
        assert decoded(other, rows, phrases=["time"]) == decoded(decoder, rows, phrases=["time"])
    assert len(pickle.dumps(decoder)) < 1.1 * len(fresh)  # nothing that is made anew
