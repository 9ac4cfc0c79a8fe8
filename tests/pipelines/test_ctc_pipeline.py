"""pipeline("automatic-speech-recognition", ..., lm=...): the stock pipeline without it, fused decoding with it."""

from __future__ import annotations

import json

import jiwer
import numpy as np
import pytest
import soundfile
import torch
import transformers
from transformers import AutomaticSpeechRecognitionPipeline, AutoTokenizer, pipeline

from hf_ngpulm import CTCDecoder, CTCNGramPipeline, NGramLM, TokenizerMismatchError
from hf_ngpulm.bundled import bundled
from hf_ngpulm.ngrams.table import NGramTable

DEMO = bundled("examples/demo")
MODEL, ARPA = str(DEMO / "model"), str(DEMO / "lm.arpa.gz")
SAMPLES_PER_FRAME = 1280


@pytest.fixture(scope="module")
def clips():
    rows = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()]
    return [(soundfile.read(DEMO / row["audio"], dtype="float32")[0], row["text"]) for row in rows]


@pytest.fixture(scope="module")
def audio(clips):
    return [samples for samples, _ in clips]


@pytest.fixture(scope="module")
def lm():
    return NGramLM.from_arpa(ARPA, AutoTokenizer.from_pretrained(MODEL), units="id")


def build(**settings):
    return pipeline("automatic-speech-recognition", model=MODEL, dtype=torch.float32, device="cpu", **settings)


@pytest.fixture(scope="module")
def stock():
    return build(pipeline_class=AutomaticSpeechRecognitionPipeline)


@pytest.fixture(scope="module")
def with_lm(lm):
    return build(lm=lm, lm_weight=0.9)


def texts(outputs):
    return [output["text"] for output in outputs]


def logits_of(asr, samples):
    inputs = asr.feature_extractor(samples, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True)
    with torch.inference_mode():
        return asr.model(input_features=inputs["input_features"], attention_mask=inputs["attention_mask"]).logits


def test_without_lm_it_is_the_stock_pipeline(stock, audio):
    ours = build()
    assert type(ours) is CTCNGramPipeline and type(stock) is AutomaticSpeechRecognitionPipeline
    long = np.concatenate(audio[:4])
    for call in (
        lambda asr: asr(audio[0]),
        lambda asr: asr(audio),
        lambda asr: asr(audio, batch_size=5),
        lambda asr: list(asr(x for x in audio[:3])),
        lambda asr: asr({"raw": audio[1], "sampling_rate": 16_000}),
        lambda asr: asr([{"array": x, "sampling_rate": 16_000, "speaker": i} for i, x in enumerate(audio[:3])]),
        lambda asr: asr(long, chunk_length_s=4, stride_length_s=1),
        lambda asr: asr(long, chunk_length_s=4, batch_size=2),
    ):
        assert call(ours) == call(stock)


@pytest.mark.parametrize("kind", ["object", "arpa", "folder"])
def test_with_lm_it_decodes_the_models_own_logits(with_lm, lm, audio, kind, tmp_path):
    asr = with_lm
    if kind == "arpa":
        asr = build(lm=ARPA, lm_weight=0.9)
    elif kind == "folder":
        lm.save_pretrained(tmp_path / "lm")
        asr = build(lm=str(tmp_path / "lm"), lm_weight=0.9)
    decoder = CTCDecoder(asr.tokenizer, lm, 0.9)
    assert texts(asr(audio[:5])) == [decoder(logits_of(asr, samples))[0][0].text for samples in audio[:5]]


def test_the_lm_lowers_the_word_error_rate(stock, with_lm, clips, audio):
    references = [text for _, text in clips]
    without, fused = (jiwer.wer(references, texts(asr(audio))) for asr in (stock, with_lm))
    assert fused < 0.75 * without
    assert jiwer.wer(references, texts(with_lm(audio, batch_size=8))) < 0.75 * without  # padding costs nothing


def test_inputs_of_all_kinds(with_lm, audio):
    expected = texts(with_lm(audio[:3]))
    assert texts(with_lm(x for x in audio[:3])) == expected
    extra = with_lm([{"raw": x, "sampling_rate": 16_000, "speaker": i} for i, x in enumerate(audio[:3])])
    assert texts(extra) == expected
    assert [output["speaker"] for output in extra] == [[0], [1], [2]]
    assert with_lm(audio[0])["text"] == expected[0]


def test_settings_of_a_call_hold_for_that_call(stock, with_lm, lm, audio):
    expected = texts(with_lm(audio[:4]))
    assert texts(with_lm(audio[:4], lm=None)) == texts(stock(audio[:4]))
    assert texts(with_lm(audio[:4], lm_weight=0.0, repeats="label")) == texts(stock(audio[:4]))
    assert texts(with_lm(audio[:4], lm_weight=0.3)) == texts(build()(audio[:4], lm=lm, lm_weight=0.3))
    assert texts(with_lm(audio[:4], lm_weight=0.3)) != expected
    assert texts(with_lm(audio[:4])) == expected


@pytest.mark.parametrize("batch_size", [1, 3])
def test_chunks_are_decoded_as_one(with_lm, lm, audio, batch_size):
    """The logits of the chunks, their strides cut off, are decoded in one go: the LM's context runs on over the seams."""
    long = np.concatenate(audio[:5])
    chunk, stride = 50 * SAMPLES_PER_FRAME, 8 * SAMPLES_PER_FRAME
    pieces, begin = [], 0
    while True:
        samples = long[begin : begin + chunk]
        logits = logits_of(with_lm, samples)[:, : round(len(samples) / SAMPLES_PER_FRAME)]
        last = begin + chunk >= len(long)
        left = 8 if begin else 0
        pieces.append(logits[:, left : logits.shape[1] if last else logits.shape[1] - 8])
        if last:
            break
        begin += chunk - 2 * stride
    expected = CTCDecoder(with_lm.tokenizer, lm, 0.9)(torch.cat(pieces, dim=1))[0][0].text
    seconds = {"chunk_length_s": chunk / 16_000, "stride_length_s": stride / 16_000}
    found = with_lm(long, batch_size=batch_size, **seconds)["text"]
    if batch_size == 1:
        assert found == expected
    else:  # padding changes the last bits of the model's outputs
        assert jiwer.wer(expected, found) < 0.1
    assert jiwer.wer(with_lm(long, chunk_length_s=20)["text"], with_lm(long)["text"]) < 0.6


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """A tiny random wav2vec2 with a character vocabulary, its parts for a pipeline, and an LM that likes `b`."""
    folder = tmp_path_factory.mktemp("characters")
    pieces = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghij"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    torch.manual_seed(1)
    config = transformers.Wav2Vec2Config(
        vocab_size=len(pieces), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        conv_dim=(16,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.Wav2Vec2ForCTC(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(40)
    parts = {
        "model": model,
        "tokenizer": transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")),
        "feature_extractor": transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True),
        "device": "cpu",
    }
    tokens = torch.arange(len(pieces) + 3)[:, None]
    log_probs = torch.full((len(pieces) + 3,), -15.0)
    log_probs[pieces.index("b")] = -0.01
    return parts, NGramLM.from_table(NGramTable.from_rows(len(pieces), [(tokens, log_probs, torch.zeros(len(tokens)))]))


@pytest.mark.parametrize("unit", ["word", "char"])
def test_timestamps(characters, audio, unit):
    parts, lm = characters
    asr = pipeline("automatic-speech-recognition", **parts, lm=lm, lm_weight=2.0)
    plain = pipeline("automatic-speech-recognition", pipeline_class=AutomaticSpeechRecognitionPipeline, **parts)
    samples = audio[0]
    found, stock = asr(samples, return_timestamps=unit), plain(samples, return_timestamps=unit)
    assert set(found["text"]) <= {"b", " "} and found["text"] != stock["text"]
    assert found["chunks"] and all(0 <= c["timestamp"][0] < c["timestamp"][1] <= len(samples) / 16_000 for c in found["chunks"])
    assert asr(samples, return_timestamps=unit, lm=None) == stock
    assert asr(samples, return_timestamps=unit, lm_weight=0.0, repeats="label") == stock


def test_chunks_with_timestamps(characters, audio):
    parts, lm = characters
    asr = pipeline("automatic-speech-recognition", **parts, lm=lm, lm_weight=0.0, repeats="label")
    plain = pipeline("automatic-speech-recognition", pipeline_class=AutomaticSpeechRecognitionPipeline, **parts)
    long = np.concatenate(audio[:3])
    settings = {"chunk_length_s": 3, "stride_length_s": 0.5, "return_timestamps": "char"}
    assert asr(long, **settings) == plain(long, **settings)


def test_wrong_uses(characters, lm, tmp_path):
    parts, other = characters
    with pytest.raises(ValueError, match="without lm="):
        build(lm_weight=0.5)
    with pytest.raises(TokenizerMismatchError):
        pipeline("automatic-speech-recognition", **parts, lm=lm)
    with pytest.raises(ValueError, match="lm_weight"):
        build(lm=lm, lm_weight=float("inf"))
    with pytest.raises(FileNotFoundError, match="neither a folder"):
        build(lm=str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="model_type"):
        build(lm=MODEL)
    config = transformers.WhisperConfig(
        vocab_size=100, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=1, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1,
    )  # fmt: skip
    whisper = {**parts, "model": transformers.WhisperForConditionalGeneration(config)}
    whisper["feature_extractor"] = transformers.WhisperFeatureExtractor()
    pipeline("automatic-speech-recognition", **whisper)  # the stock pipeline
    with pytest.raises(ValueError, match="works with CTC models"):
        pipeline("automatic-speech-recognition", **whisper, lm=other)


def test_a_batch_of_silence_and_of_almost_nothing(with_lm):
    outputs = with_lm([np.zeros(16_000, dtype=np.float32), np.zeros(1_700, dtype=np.float32)], batch_size=2)
    assert all(isinstance(output["text"], str) for output in outputs)
