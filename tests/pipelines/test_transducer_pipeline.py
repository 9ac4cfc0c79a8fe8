"""TransducerNGramPipeline: without a language model the stock pipeline; with one, TransducerDecoder on its own frames."""

from __future__ import annotations

import json

import pytest
import soundfile
import torch
from tiny_transducers import FAMILIES, demo_transducer
from transformers import AutomaticSpeechRecognitionPipeline, pipeline

from hf_ngpulm import NGramLM, TokenizerMismatchError, TransducerDecoder, TransducerNGramPipeline
from hf_ngpulm.common.bundled import bundled

DEMO = bundled("examples/speech/harbour")
TASK = "automatic-speech-recognition"


@pytest.fixture(scope="module")
def audios():
    lines = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()][:4]
    return [soundfile.read(DEMO / line["audio"], dtype="float32")[0] for line in lines]


@pytest.fixture(scope="module", params=[name for name, _ in FAMILIES])
def parts(request):
    return demo_transducer(request.param)


@pytest.fixture(scope="module")
def lm(parts):
    return NGramLM.from_arpa(DEMO / "lm.arpa.gz", parts["tokenizer"])


def frames_of(parts, audio):
    inputs = parts["feature_extractor"](audio, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    with torch.inference_mode():
        return TransducerDecoder(parts["model"], parts["tokenizer"]).model.encode(
            inputs["input_features"], inputs["attention_mask"]
        )


def texts(results):
    return [result["text"] for result in results]


def copies(audios):
    return [audio.copy() for audio in audios]


def test_without_lm_it_is_the_stock_pipeline(parts, audios):
    stock, ours = AutomaticSpeechRecognitionPipeline(**parts), pipeline(TASK, **parts)
    assert type(ours) is TransducerNGramPipeline
    expected = stock(copies(audios))
    assert ours(copies(audios)) == expected and any(texts(expected))


def test_with_lm_it_is_the_decoder(parts, lm, audios):
    asr = pipeline(TASK, **parts, lm=lm, lm_weight=3.0)
    expected = []
    for weight in (3.0, 1.0):
        decoder = TransducerDecoder(parts["model"], parts["tokenizer"], lm, weight, frame_seconds=0.08)
        expected.append([decoder.decode(*frames_of(parts, audio))[0][0] for audio in audios])
    heavy, light = expected
    assert [asr(audio.copy())["text"] for audio in audios] == [best.text for best in heavy]
    assert texts(asr(copies(audios), lm_weight=1.0)) == [best.text for best in light]
    assert texts(asr(audio.copy() for audio in audios)) == [best.text for best in heavy]
    assert [best.text for best in heavy] != [best.text for best in light] != texts(asr(copies(audios), lm=None))
    for kind in ("word", "char"):
        for audio, best in zip(audios, heavy):
            chunks = asr(audio.copy(), return_timestamps=kind, confidence="gibbs")["chunks"]
            words = best.words if kind == "word" else best.characters
            assert [(chunk["text"], chunk["timestamp"]) for chunk in chunks] == [(w.text, (w.start, w.end)) for w in words]
            assert all(0 <= chunk["confidence"] <= 1 for chunk in chunks)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_batches_are_decoded_without_their_padding(parts, lm, audios, batch_size):
    asr = pipeline(TASK, **parts, lm=lm, lm_weight=2.0)
    inputs = parts["feature_extractor"](audios[:3], sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    decoder = TransducerDecoder(parts["model"], parts["tokenizer"], lm, 2.0)
    together = [best.text for (best,) in decoder(inputs["input_features"], inputs["attention_mask"])]
    alone = [decoder.decode(*frames_of(parts, audio))[0][0].text for audio in audios[:3]]
    assert texts(asr(copies(audios[:3]), batch_size=batch_size)) == (alone if batch_size == 1 else together)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_chunks_are_decoded_in_one_go(parts, lm, audios, batch_size):
    asr = pipeline(TASK, **parts, lm=lm, lm_weight=2.0)
    decoder = TransducerDecoder(parts["model"], parts["tokenizer"], lm, 2.0)
    audio, frame, chunk, side = audios[0], 1280, 20, 3
    pieces = []
    for first in range(0, len(audio), (chunk - 2 * side) * frame):
        samples = audio[first : first + chunk * frame]
        is_last = first + chunk * frame >= len(audio)
        frames, lengths = frames_of(parts, samples)
        end = min(round(len(samples) / frame) - (0 if is_last else side), int(lengths))
        pieces.append(frames[:, side if first else 0 : end])
        if is_last:
            break
    ((best,),) = decoder.decode(torch.cat(pieces, dim=1))
    settings = {"chunk_length_s": chunk * 0.08, "stride_length_s": side * 0.08, "batch_size": batch_size}
    assert len(pieces) > 1
    if batch_size == 1:  # these encoders feel the padding of a batch
        assert asr(audio.copy(), **settings)["text"] == best.text
    assert asr(audio.copy(), **settings)["text"]


def test_beams_and_n_best_lists(parts, lm, audios):
    asr = pipeline(TASK, **parts, lm=lm, lm_weight=2.0, num_beams=5)
    decoder = TransducerDecoder(
        parts["model"], parts["tokenizer"], lm, 2.0, num_beams=5, num_return_sequences=3, frame_seconds=0.08
    )
    expected = [decoder.decode(*frames_of(parts, audio))[0] for audio in audios]
    assert [asr(audio.copy())["text"] for audio in audios] == [best.text for best, *_ in expected]
    for audio, n_best in zip(audios, expected):
        result = asr(audio.copy(), num_return_sequences=3, return_timestamps="word")
        assert [h["text"] for h in result["hypotheses"]] == [h.text for h in n_best]
        assert [h["score"] for h in result["hypotheses"]] == pytest.approx([h.score for h in n_best], abs=1e-3)
        words = [(word.text, (word.start, word.end)) for word in n_best[1].words]
        assert [(chunk["text"], chunk["timestamp"]) for chunk in result["hypotheses"][1]["chunks"]] == words
    plain = TransducerDecoder(parts["model"], parts["tokenizer"], num_beams=3)
    alone = pipeline(TASK, **parts, num_beams=3)
    assert [alone(audio.copy())["text"] for audio in audios] == [
        plain.decode(*frames_of(parts, audio))[0][0].text for audio in audios
    ]
    if not hasattr(parts["model"].config, "durations"):
        decoder = TransducerDecoder(parts["model"], parts["tokenizer"], lm, 2.0, strategy="aes", aes_steps=3)
        found = [asr(audio.copy(), strategy="aes", num_beams=4, aes_steps=3)["text"] for audio in audios]
        assert found == [decoder.decode(*frames_of(parts, audio))[0][0].text for audio in audios]


@pytest.mark.slow
def test_the_generation_config_may_name_an_lm(parts, lm, audios, tmp_path, monkeypatch):
    lm.save_pretrained(tmp_path)
    expected = [texts(pipeline(TASK, **parts, lm=lm, lm_weight=weight)(copies(audios))) for weight in (3.0, 1.0)]
    plain = texts(pipeline(TASK, **parts)(copies(audios)))
    monkeypatch.setattr(parts["model"].generation_config, "ngram_lm", str(tmp_path), raising=False)
    monkeypatch.setattr(parts["model"].generation_config, "ngram_lm_weight", 3.0, raising=False)
    asr = pipeline(TASK, **parts)
    assert texts(asr(copies(audios))) == expected[0] != plain
    assert texts(asr(copies(audios), lm_weight=1.0)) == expected[1]
    assert texts(pipeline(TASK, **parts, lm_weight=1.0)(copies(audios))) == expected[1]
    assert texts(asr(copies(audios), lm=None)) == texts(pipeline(TASK, **parts, lm=None)(copies(audios))) == plain
    monkeypatch.setattr(parts["model"].generation_config, "ngram_lm", 7)
    with pytest.raises(ValueError, match="ngram_lm should be a Hub id or a path, got 7"):
        pipeline(TASK, **parts)


def test_settings_of_the_encoder_reach_it(parts, lm, audios, monkeypatch):
    """Such as a Nemotron's language; what only `generate` would understand is refused."""
    asr, encode, seen = pipeline(TASK, **parts, lm=lm), parts["model"].get_audio_features, []

    def noting(prompt_ids=None, num_lookahead_tokens=None, **kwargs):
        seen.append((prompt_ids, num_lookahead_tokens))
        return encode(**kwargs)

    monkeypatch.setattr(parts["model"], "get_audio_features", noting)
    asr(audios[0].copy(), generate_kwargs={"prompt_ids": torch.tensor([2]), "num_lookahead_tokens": 3})
    assert seen == [(torch.tensor([2]), 3)]
    with pytest.raises(ValueError, match="max_new_tokens: settings of generate"):
        asr(audios[0].copy(), generate_kwargs={"max_new_tokens": 5})


def test_wrong_uses(parts, lm, audios):
    with pytest.raises(ValueError, match="lm_weight given without lm="):
        pipeline(TASK, **parts, lm_weight=0.5)
    with pytest.raises(ValueError, match="ilm_weight given without lm="):
        pipeline(TASK, **parts, ilm_weight=0.5)
    with pytest.raises(ValueError, match="ilm_weight should be"):
        pipeline(TASK, **parts, lm=lm, ilm_weight=float("nan"))
    with pytest.raises(ValueError, match="max_symbols given without lm="):
        pipeline(TASK, **parts)(audios[0].copy(), max_symbols=3)
    with pytest.raises(ValueError, match="max_symbols should be"):
        pipeline(TASK, **parts, lm=lm, max_symbols=0)
    with pytest.raises(ValueError, match=r"num_return_sequences should be a whole number from 1 to 4 \(num_beams\)"):
        pipeline(TASK, **parts, num_beams=4, num_return_sequences=5)
    with pytest.raises(ValueError, match="blank_scoring given without lm="):
        pipeline(TASK, **parts, num_beams=4, blank_scoring="none")
    with pytest.raises(ValueError, match="ilm_weigth: there is no such setting; did you mean ilm_weight"):
        pipeline(TASK, **parts, lm=lm, ilm_weigth=0.1)
    with pytest.raises(ValueError, match="beta, repeats: no settings for"):
        pipeline(TASK, **parts, lm=lm, beta=1.0, repeats="stay")
    other = NGramLM.train([[0, 1]], vocab_size=300, order=1)
    with pytest.raises(TokenizerMismatchError, match="300"):
        pipeline(TASK, **parts, lm=other)
