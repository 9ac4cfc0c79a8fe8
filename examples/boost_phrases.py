"""Have phrases recognised, another list for each recording: no language model, no training. Runs offline in seconds.

python examples/boost_phrases.py
"""

from pathlib import Path

import soundfile
import torch
from transformers import pipeline

import hf_ngpulm  # noqa: F401  (registers the pipeline class that takes phrases=)

examples = Path(__file__).parent
speech = examples / "speech" / "harbour"
asr = pipeline("automatic-speech-recognition", model=str(examples / "models" / "ctc"), dtype=torch.float32, num_beams=8)
clips = sorted((speech / "clips").glob("0[0-3].flac"))
audio = [{"raw": samples, "sampling_rate": rate} for samples, rate in (soundfile.read(path, dtype="float32") for path in clips)]
phrases = [
    ["lighthouse", "half speed"],
    [("harbour master", 2.0), "minutes late"],  # a weight of its own
    ["green buoy", "starboard side"],
    None,  # this recording has none
]
without = asr([dict(each) for each in audio], batch_size=4)
boosted = asr(audio, phrases=phrases, phrase_weight=2.0, batch_size=4)
for path, before, after in zip(clips, without, boosted):
    print(f"{path.name}  without phrases: {before['text']}\n         with phrases:    {after['text']}")
