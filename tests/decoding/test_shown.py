"""What decoders show of themselves: one line with what was set."""

from __future__ import annotations

import pytest
import torch
from speech_models import whisper_parts
from tiny_transducers import demo_transducer
from transformers import AutoModelForCTC, AutoProcessor

from hf_ngpulm import (
    CTCDecoder,
    GraphDecoder,
    LogLinear,
    NGramLM,
    NGramLogitsProcessor,
    PhraseBooster,
    StreamingDecoder,
    StreamingRecognizer,
    TransducerDecoder,
)
from hf_ngpulm.common.bundled import bundled

LM = "NGramLM(order=2, num_ngrams=(7, 7), tokenizer_id=None, vocab_size=256, states=6, arcs=264, device=cpu)"


@pytest.fixture(scope="module")
def processor():
    return AutoProcessor.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm():
    return NGramLM.train([[1, 2, 3], [3, 4]] * 9, vocab_size=256, order=2)


def test_ctc(processor, lm):
    assert repr(lm) == LM
    assert repr(CTCDecoder(processor)) == "CTCDecoder()"
    assert repr(CTCDecoder(processor, lm, 0.7)) == f"CTCDecoder(lm={LM}, lm_weight=0.7, num_beams=4)"
    booster = PhraseBooster(["gull island"], processor)
    assert repr(booster).startswith("PhraseBooster(phrases=1, vocab_size=")
    decoder = CTCDecoder(
        processor, lm, torch.tensor([0.5, 0.25]), booster, num_beams=8, confidence=None, source_lm=lm, source_weight=0.1
    )
    assert repr(decoder) == (
        f"CTCDecoder(lm={LM}, lm_weight=[0.5, 0.25], source_lm={LM}, source_weight=0.1, phrases={booster!r}, "
        "phrase_weight=1.0, confidence=None, num_beams=8)"
    )
    rows = CTCDecoder(processor, [lm, None] * 3, num_beams=2, beta=torch.ones(6))
    assert repr(rows) == (
        f"CTCDecoder(lm=[{LM}, None, {LM}, None, ... 6 in all], lm_weight=0.8, num_beams=2, "
        "beta=[1.0, 1.0, 1.0, 1.0, ... 6 in all])"
    )
    assert "\n" not in repr(LogLinear([lm, lm], [0.5, 0.5]))
    assert repr(StreamingDecoder(CTCDecoder(processor), 3)) == (
        "StreamingDecoder(CTCDecoder(), max_streams=3, endpoint_frames=None, open=0, device='cpu')"
    )


def test_graph(processor, lm):
    decoder = GraphDecoder(processor, lm, 0.5, phrases={"gull island": 2.0}, max_active=16)
    assert repr(decoder) == f"GraphDecoder(lm={LM}, lm_weight=0.5, phrases=['gull island'], max_active=16)"


def test_transducers(lm):
    parts = demo_transducer("ParakeetForRNNT")
    decoder = TransducerDecoder(parts["model"], parts["tokenizer"], lm, strategy="alsd", num_beams=3, frame_seconds=0.08)
    assert repr(decoder) == (
        f"TransducerDecoder(ParakeetForRNNT, lm={LM}, lm_weight=0.8, frame_seconds=0.08, strategy='alsd', num_beams=3)"
    )


def test_recognizer(processor, lm):
    model = AutoModelForCTC.from_pretrained(bundled("examples/models/ctc"), dtype=torch.float32)
    recognizer = StreamingRecognizer(model, processor, max_streams=2, lm=lm)
    recognizer.open()
    assert repr(recognizer) == (
        "StreamingRecognizer(ParakeetForCTC, chunk_seconds=1.28, latency_seconds=2.56, decoder=StreamingDecoder(CTCDecoder("
        f"lm={LM}, lm_weight=0.8, frame_seconds=0.08, num_beams=4), max_streams=2, endpoint_frames=None, open=1, device='cpu'))"
    )


def test_logits_processor(tmp_path, lm):
    parts = whisper_parts(tmp_path / "vocabulary.json")
    lm = NGramLM.train(["ab ba"] * 9, parts["tokenizer"], order=2)
    shown = repr(NGramLogitsProcessor(lm, 0.3, model=parts["model"], tokenizer=parts["tokenizer"], score_eos=True))
    assert shown == f"NGramLogitsProcessor(lm={lm!r}, weight=0.3, model='WhisperForConditionalGeneration', score_eos=True)"
