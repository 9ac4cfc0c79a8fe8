"""Three streams decoded in one batch, chunk by chunk, with a language model. Runs offline in seconds.

python examples/stream.py
"""

from pathlib import Path

import soundfile
import torch
from transformers import AutoModelForCTC, AutoProcessor

from hf_ngpulm import CTCDecoder, NGramLM, StreamingDecoder

examples = Path(__file__).parent
speech = examples / "speech" / "harbour"
processor = AutoProcessor.from_pretrained(examples / "models" / "ctc")
model = AutoModelForCTC.from_pretrained(examples / "models" / "ctc", dtype=torch.float32).eval()
lm = NGramLM.from_arpa(speech / "lm.arpa.gz", tokenizer=processor.tokenizer)
decoder = CTCDecoder(processor, lm=lm, lm_weight=1.0, num_beams=8, frame_seconds=0.08)

# The bundled model hears a whole recording at once; what it says arrives in chunks of 0.64 s.
waiting = []
for path in sorted((speech / "clips").glob("0[0-2].flac")):
    audio, rate = soundfile.read(path, dtype="float32")
    with torch.inference_mode():
        logits = model(**processor(audio, sampling_rate=rate, return_tensors="pt")).logits[0]
    waiting.append(list(logits.split(8)))

stream = StreamingDecoder(decoder, max_streams=3, endpoint_seconds=0.8)
chunks_of = {}
while waiting or chunks_of:
    if waiting:  # streams open at any time: here one with each step
        chunks_of[stream.open()] = waiting.pop(0)
    for sid, partial in stream.step({sid: chunks.pop(0) for sid, chunks in chunks_of.items()}).items():
        print(f"stream {sid}, {partial.frames * 0.08:.2f} s: [{partial.stable_text}]{partial.text[len(partial.stable_text) :]}")
    for sid in [sid for sid, chunks in chunks_of.items() if not chunks]:
        best = stream.close(sid)[0]
        del chunks_of[sid]
        print(f"stream {sid}, final: {best.text} ({best.words[0].start:.2f} to {best.words[-1].end:.2f} s)")
