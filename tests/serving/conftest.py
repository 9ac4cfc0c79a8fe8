"""The model that the server of the tests has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCTC, AutoProcessor

from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.audio import StreamingRecognizer
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.sound.files import read_audio

DEMO = bundled("examples/speech/harbour")
CUT = {"chunk_seconds": 1.28, "left_seconds": 1.28, "right_seconds": 0.32}


@pytest.fixture(scope="session")
def demo():
    processor = AutoProcessor.from_pretrained(bundled("examples/models/ctc"))
    model = AutoModelForCTC.from_pretrained(bundled("examples/models/ctc"), dtype=torch.float32).eval()
    lm = NGramLM.from_arpa(DEMO / "lm.arpa.gz", processor.tokenizer, units="id")

    other_lm = NGramLM.train([[1, 2, 3], [3, 2, 1]], vocab_size=lm.vocab_size, order=2)

    def recognizer(streams, **settings):
        return StreamingRecognizer(model, processor, streams, **{"lm": lm, "lm_weight": 0.9, **CUT, **settings})

    clips = [read_audio(DEMO / "clips" / f"{number:02}.flac", 16000) for number in range(16)]
    return SimpleNamespace(recognizer=recognizer, clips=clips, model=model, processor=processor, lm=lm, other_lm=other_lm)


@pytest.fixture(scope="session")
def offline(demo):
    """What the decoder finds in a whole recording, without anything of the server or of streams."""

    def transcribe(samples, **settings):
        with torch.inference_mode():
            logits = demo.model(**demo.processor(samples, sampling_rate=16000, return_tensors="pt")).logits
        given = {"lm": demo.lm, "lm_weight": 0.9, **settings}
        return CTCDecoder(demo.processor, **given, frame_seconds=0.08)(logits)[0][0]

    return transcribe
