"""What comes as a CTC model's outputs: padded as the Trainer of Transformers pads it, or probabilities."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, GraphDecoder, InvalidLogitsError, NGramLM
from hf_ngpulm.common.bundled import bundled

BLANK, LENGTHS = 256, [12, 0, 30, 7]


@pytest.fixture(scope="module", params=["greedy", "beams", "graph"])
def decoder(request):
    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    lm = NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")
    if request.param == "graph":
        return GraphDecoder(tokenizer, lm, 1.0, max_active=16)
    return CTCDecoder(tokenizer, lm, 1.0, num_beams=1 if request.param == "greedy" else 4)


def outputs(seed=0):
    """Hesitant ones, so that the LM speaks in frames that say nothing."""
    return torch.randn(len(LENGTHS), 30, 257, generator=torch.Generator().manual_seed(seed))


def padded(logits, value):
    """Outputs whose rows end after `LENGTHS` frames."""
    return logits.masked_fill(torch.arange(30)[:, None] >= torch.tensor(LENGTHS)[:, None, None], value)


@pytest.mark.parametrize("value", [-100.0, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frames_at_the_end_that_tell_nothing_are_padding(decoder, value, dtype):
    logits = padded(outputs().to(dtype), value)
    found = decoder(logits)
    assert found == decoder(logits, LENGTHS) == decoder(logits.numpy() if dtype == torch.float32 else logits)
    assert found[1][0].text == "" and found[2][0].text
    everything = decoder(logits, [30] * 4)  # who says how long rows are is taken at their word
    assert everything[1][0].score != found[1][0].score
    if isinstance(decoder, CTCDecoder):
        assert decoder.label_frames(logits).labels.tolist() == decoder.label_frames(logits, LENGTHS).labels.tolist()


def test_frames_within_that_tell_nothing_are_frames(decoder):
    logits = outputs()
    logits[:, 10:20] = 1.0
    assert decoder(logits) == decoder(logits, [30] * 4)
    logits = padded(outputs(), -100.0)
    logits[:, -1, 5] += 1e-5  # nearly alike
    assert decoder(logits) == decoder(logits, [30] * 4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_broken_frames_are_no_padding(decoder, value):
    with pytest.raises(InvalidLogitsError, match="row 0 hold NaN or infinity at frame 12"):
        decoder(padded(outputs(), value))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_probabilities(decoder, dtype):
    logits = outputs()
    probabilities = logits.double().softmax(-1).to(dtype)
    for given, lengths in (
        (probabilities, None),
        (padded(probabilities, -100.0), None),
        (padded(probabilities, -1.0), LENGTHS),
    ):
        with pytest.raises(InvalidLogitsError, match=r"probabilities\.log\(\)"):
            decoder(given, lengths)
    with pytest.raises(InvalidLogitsError, match=r"probabilities\.log\(\)"):
        decoder.stream(4).add(probabilities)
    if isinstance(decoder, CTCDecoder):
        with pytest.raises(InvalidLogitsError, match=r"probabilities\.log\(\)"):
            decoder.label_frames(probabilities)
    if dtype == torch.float64:
        found, expected = ([best.text for (best,) in decoder(given)] for given in (probabilities.log(), logits))
        assert found == expected
    probabilities[3, 29, 7] += 0.5  # one frame is enough to tell that they aren't
    assert len(decoder(probabilities)) == 4


def test_no_frames(decoder):
    assert decoder(torch.zeros(0, 5, 257)) == []
    for frames in (0, 3):
        assert decoder(torch.zeros(2, frames, 257))[1][0].text == ""
    assert decoder(torch.full((1, 3, 257), 1 / 257), [0])[0][0].text == ""
