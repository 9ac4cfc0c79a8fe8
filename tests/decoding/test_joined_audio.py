"""Recordings of several sentences: what CTC decoders leave out."""

from __future__ import annotations

import json

import jiwer
import numpy as np
import soundfile
import torch
from transformers import pipeline

from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.common.bundled import bundled


def test_an_lm_leaves_out_no_more_of_joined_audio_than_none():
    """Four clips to a recording, voices and noises in turns, as the model never heard them."""
    asr = pipeline("automatic-speech-recognition", model=str(bundled("examples/models/ctc")), dtype=torch.float32)
    folder = bundled("examples/speech/harbour")
    clips = [json.loads(line) for line in (folder / "clips.jsonl").read_text().splitlines()][:16]
    audio = [soundfile.read(folder / clip["audio"], dtype="float32")[0] for clip in clips]
    rows = [
        asr.feature_extractor(np.concatenate(audio[row : row + 4]), sampling_rate=16000, return_tensors="pt")
        for row in range(0, 16, 4)
    ]
    with torch.inference_mode():
        logits = [asr.model(row.input_features).logits[0] for row in rows]
    lm = NGramLM.from_arpa(folder / "lm.arpa.gz", asr.tokenizer)
    spoken = [" ".join(clip["text"] for clip in clips[row : row + 4]) for row in range(0, 16, 4)]

    def errors(**settings):
        decoder = CTCDecoder(asr.tokenizer, num_beams=8, **settings)
        return jiwer.process_words(spoken, [decoder(row[None])[0][0].text for row in logits])

    none, found, short = errors(), errors(lm=lm, lm_weight=0.7), errors(lm=lm, lm_weight=0.7, beta=2.1)
    assert found.deletions <= none.deletions < short.deletions
    assert found.wer < short.wer < none.wer
