"""Transcribe the bundled clips with a language model: the whole job in a few lines. Runs offline in seconds.

python examples/transcribe_with_lm.py
"""

from pathlib import Path

import soundfile
import torch
from transformers import pipeline

import hf_ngpulm  # noqa: F401  (registers the pipeline class that takes lm=)

examples = Path(__file__).parent
speech = examples / "speech" / "harbour"
asr = pipeline(
    "automatic-speech-recognition",
    model=str(examples / "models" / "ctc"),
    dtype=torch.float32,
    lm=str(speech / "lm.arpa.gz"),  # also: a Hub repo ("org/my-lm"), a saved folder, a .nemo file, or an NGramLM
    lm_weight=0.9,
)
for path in sorted((speech / "clips").glob("0[0-3].flac")):
    audio, rate = soundfile.read(path, dtype="float32")
    with_lm = asr({"raw": audio, "sampling_rate": rate})["text"]
    without = asr({"raw": audio, "sampling_rate": rate}, lm=None)["text"]
    with_beam = asr({"raw": audio, "sampling_rate": rate}, lm_weight=1.0, num_beams=8, return_timestamps="word")
    print(f"{path.name}  without LM: {without}\n         with LM:    {with_lm}\n         and a beam: {with_beam['text']}")
first = with_beam["chunks"][0]
print(f"the first word, {first['text']!r}, from {first['timestamp'][0]:.2f} to {first['timestamp'][1]:.2f} s")
