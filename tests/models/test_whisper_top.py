"""A frozen Whisper under trained layers: its frames, batches, saving, auto classes, pipelines, and the example that trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import transformers
from transformers import ParakeetProcessor, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from hf_ngpulm import NGramLM
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.models import (
    WhisperTopConfig,
    WhisperTopCTCConfig,
    WhisperTopFeatureExtractor,
    WhisperTopForCTC,
    WhisperTopForRNNT,
    WhisperTopForTDT,
    WhisperTopRNNTConfig,
    WhisperTopTDTConfig,
)
from hf_ngpulm.models.whisper_top import WhisperFrames

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_on_whisper"
WHISPER = {
    "d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_layers": 1,
    "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "vocab_size": 60, "max_source_positions": 300, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 1, "decoder_start_token_id": 2, "suppress_tokens": [], "begin_suppress_tokens": [],
}  # fmt: skip
LAYERS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "conv_kernel_size": 3}
ENCODER = {"whisper": WHISPER, **LAYERS}
TRANSDUCER = {"decoder_hidden_size": 16, "num_decoder_layers": 1, "encoder_config": ENCODER}


def models() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    return {
        "ctc": WhisperTopForCTC(WhisperTopCTCConfig(vocab_size=257, pad_token_id=256, encoder_config=ENCODER)).eval(),
        "rnnt": WhisperTopForRNNT(
            WhisperTopRNNTConfig(vocab_size=257, blank_token_id=256, pad_token_id=256, **TRANSDUCER)
        ).eval(),
        "tdt": WhisperTopForTDT(WhisperTopTDTConfig(vocab_size=258, blank_token_id=257, pad_token_id=256, **TRANSDUCER)).eval(),
    }


def recordings(*seconds: float) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(round(16_000 * length)).astype(np.float32) / 10 for length in seconds]


def test_at_whispers_own_length_the_frames_are_whispers():
    whisper = WhisperForConditionalGeneration(WhisperConfig(**WHISPER)).eval()
    frames = WhisperFrames(WhisperTopConfig(**ENCODER)).eval()
    frames.whisper.load_state_dict(whisper.model.encoder.state_dict())
    stock = WhisperFeatureExtractor(chunk_length=6)(recordings(2.0)[0], sampling_rate=16_000, return_tensors="pt")
    ours = WhisperTopFeatureExtractor(end_silence=4.0)(recordings(2.0)[0], sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        wanted = whisper.model.encoder(stock.input_features).last_hidden_state
        assert torch.equal(ours.input_features.transpose(1, 2), stock.input_features)
        torch.testing.assert_close(frames.heard(**ours), wanted)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_row_does_not_depend_on_its_batch(factor):
    config = WhisperTopCTCConfig(vocab_size=257, pad_token_id=256, encoder_config={**ENCODER, "subsampling_factor": factor})
    model, extractor = WhisperTopForCTC(config).eval(), WhisperTopFeatureExtractor()
    audio = recordings(1.0, 2.37, 0.4)
    batch = extractor(audio, sampling_rate=16_000, return_tensors="pt")
    lengths = model._get_subsampling_output_length(batch.attention_mask.sum(-1))
    with torch.no_grad():
        logits = model(**batch).logits
        for row, samples in enumerate(audio):
            alone = model(**extractor(samples, sampling_rate=16_000, return_tensors="pt")).logits[0]
            assert len(alone) == lengths[row] == -(-batch.attention_mask[row].sum() // factor)
            torch.testing.assert_close(logits[row, : len(alone)], alone, atol=1e-5, rtol=1e-5)


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="subsampling_factor=3: it should be 2, 4 or 8"):
        WhisperTopConfig(**ENCODER, subsampling_factor=3)
    inputs = WhisperTopFeatureExtractor()(recordings(7.0), sampling_rate=16_000, return_tensors="pt")
    with pytest.raises(ValueError, match=r"has 7\.3 s; this Whisper hears 6 s at most"):
        models()["ctc"](**inputs)


@pytest.mark.parametrize("kind", ["ctc", "rnnt", "tdt"])
def test_saved_models_load_with_auto_classes_and_in_pipelines(kind, tmp_path):
    model = models()[kind]
    model.save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bundled(f"examples/models/{kind}"))
    ParakeetProcessor(WhisperTopFeatureExtractor(), tokenizer, decoder_type=kind).save_pretrained(tmp_path)
    task = {"ctc": "AutoModelForCTC", "rnnt": "AutoModelForRNNT", "tdt": "AutoModelForTDT"}[kind]
    again = getattr(transformers, task).from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert all(torch.equal(one, other) for one, other in zip(model.state_dict().values(), again.state_dict().values()))
    asr = transformers.pipeline("automatic-speech-recognition", model=str(tmp_path))
    assert type(asr.feature_extractor) is WhisperTopFeatureExtractor
    lm = NGramLM.from_texts(["set an alarm", "call home"], tokenizer, order=2)
    audio = [{"raw": samples, "sampling_rate": 16_000} for samples in recordings(0.5, 0.7)]
    for text in asr(audio, lm=lm, num_beams=2, batch_size=2):
        assert isinstance(text["text"], str)
    assert isinstance(asr(recordings(0.5)[0])["text"], str)


@pytest.mark.slow
def test_the_configuration_loads_before_any_model(tmp_path):
    models()["tdt"].config.save_pretrained(tmp_path)
    code = """
import sys, hf_ngpulm
from transformers import AutoConfig
print(AutoConfig.from_pretrained(sys.argv[1]).encoder_config.whisper["d_model"])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "16"


@pytest.mark.slow
def test_the_example_trains_all_kinds(tmp_path):
    """Frames of two recordings, three steps, stopped and gone on with; the models are saved and transcribe."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=transformers.AutoTokenizer.from_pretrained(bundled("examples/models/ctc")).backend_tokenizer
    )
    WhisperForConditionalGeneration(WhisperConfig(**WHISPER)).save_pretrained(tmp_path / "whisper")
    tokenizer.save_pretrained(tmp_path / "whisper")
    lines = []
    for number, samples in enumerate(recordings(1.0, 2.0, 1.5)):
        soundfile.write(tmp_path / f"{number}.wav", samples, 16_000)
        lines.append({"audio": f"{number}.wav", "text": "set an alarm for seven", "split": "test" if number == 2 else "train"})
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(script: str, *arguments: str) -> None:
        subprocess.run([sys.executable, str(EXAMPLE / script), *arguments], cwd=tmp_path, check=True, capture_output=True)

    run("features.py", "whisper", "train.jsonl", "frames", "--speeds", "1.0", "0.9")
    index = [json.loads(line) for line in (tmp_path / "frames" / "index.jsonl").read_text().splitlines()]
    assert [(Path(line["audio"]).name, line["speed"]) for line in index] == [
        ("0.wav", 1),
        ("1.wav", 1),
        ("0.wav", 0.9),
        ("1.wav", 0.9),
    ]
    assert (tmp_path / "frames" / "frames.raw").stat().st_size == index[-1]["end"] * WHISPER["d_model"] * 2
    run("train.py", "whisper", "frames", "run", "--steps", "2")
    run("train.py", "whisper", "frames", "run", "--steps", "3")
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"] == 3
    for kind in ("ctc", "rnnt", "tdt"):
        asr = transformers.pipeline("automatic-speech-recognition", model=str(tmp_path / "run" / kind), dtype=torch.float32)
        assert isinstance(asr({"raw": recordings(1.0)[0], "sampling_rate": 16_000}, num_beams=2)["text"], str)
