"""A batch cut into its rows, some of which have no language model: each row is decoded as it was in the batch."""

from __future__ import annotations

import pytest
import torch
from toys import Toy
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, StreamingDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled

PHRASES = ["old lighthouse", "gull island"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


@pytest.fixture(scope="module")
def source(tokenizer):
    return NGramLM.train([[1, 2, 3], [3, 4]] * 9, vocab_size=256, order=2)


CASES = {
    "greedy": {},
    "beams": {"num_beams": 4},
    "transducer": {"strategy": "greedy"},
    "transducer without internal LM": {"strategy": "greedy", "ilm_weight": 0.0},
    "transducer with beams": {"num_beams": 3, "ilm_weight": 0.2},
}


@pytest.mark.parametrize("phrases", [None, PHRASES])
@pytest.mark.parametrize("with_source", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_rows_one_by_one(tokenizer, lm, source, case, with_source, phrases):
    settings = dict(CASES[case])
    if with_source:
        settings |= {"source_lm": source, "source_weight": 0.2}
    frames = torch.randn(3, 12, 257, generator=torch.Generator().manual_seed(1))
    if case.startswith("transducer"):
        frames = torch.randn(3, 12, 6, generator=torch.Generator().manual_seed(1))
        toy = Toy(257, 256, seed=1, blank_bias=2.0)

    def decoder(lms):
        if case.startswith("transducer"):
            return TransducerDecoder(toy, tokenizer, lms, 0.6, phrases, **settings)
        return CTCDecoder(tokenizer, lms, 0.6, phrases, **settings)

    lms = [None, lm, None]
    whole = decoder(lms).decode(frames)
    for row, of_row in enumerate(lms):
        (alone,) = decoder([of_row]).decode(frames[row : row + 1])
        assert [best.text for best in alone] == [best.text for best in whole[row]]
        assert [best.score for best in alone] == pytest.approx([best.score for best in whole[row]], abs=1e-3)
    assert [best.text for (best, *_) in decoder([None, None]).decode(frames[[0, 2]])] == [whole[0][0].text, whole[2][0].text]
    with pytest.raises(ValueError, match=r"lists? \w+ .*language models, the batch has 3|2 .* 3"):
        decoder([None, None]).decode(frames)
    stream = StreamingDecoder(decoder([None]), max_streams=1)
    sid = stream.open()
    stream.step({sid: frames[0]})
    assert stream.close(sid)[0].text == whole[0][0].text


def test_lists_that_are_refused(tokenizer, lm):
    with pytest.raises(ValueError, match="lm is an empty list"):
        CTCDecoder(tokenizer, [])
    with pytest.raises(ValueError, match=r"lm=\[None\]: a graph needs a language model"):
        GraphDecoder(tokenizer, [None])
    graph, frames = GraphDecoder(tokenizer, [None, lm]), torch.randn(2, 12, 257, generator=torch.Generator().manual_seed(1))
    assert graph.select([0])(frames[:1])[0][0].text == graph(frames)[0][0].text
