"""CTCNGramPipeline: without a language model the stock pipeline; with one, CTCDecoder on the model's own logits."""

from __future__ import annotations

import itertools
import json
import math

import jiwer
import numpy as np
import pytest
import soundfile
import torch
from transformers import (
    AutomaticSpeechRecognitionPipeline,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Model,
    pipeline,
)

from hf_ngpulm import CTCDecoder, CTCNGramPipeline, NGramLM, TokenizerMismatchError
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.families import frame_lengths

DEMO = bundled("examples/speech/harbour")
ARPA = DEMO / "lm.arpa.gz"
WEIGHT = 0.9
TASK = "automatic-speech-recognition"
RATE = 16000
LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def clips():
    lines = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()]
    return [(soundfile.read(DEMO / line["audio"], dtype="float32")[0], line["text"]) for line in lines]


@pytest.fixture(scope="module")
def audios(clips):
    return [audio for audio, _ in clips[:6]]


@pytest.fixture(scope="module")
def plain():
    """Made without any of the package's settings."""
    return pipeline(TASK, model=str(bundled("examples/models/ctc")), dtype=torch.float32)


@pytest.fixture(scope="module")
def lm(plain):
    return NGramLM.from_arpa(ARPA, plain.tokenizer)


@pytest.fixture(scope="module")
def with_lm(plain, lm):
    return pipeline(TASK, **parts(plain), lm=lm, lm_weight=WEIGHT, num_beams=1)


@pytest.fixture(scope="module")
def wav2vec2(tmp_path_factory):
    """Tiny, with random weights that say something: no special tokens, many blanks, a change of label every few frames."""
    vocabulary = ["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS]
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.json"
    path.write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(
        Wav2Vec2Config(
            vocab_size=len(vocabulary),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            conv_dim=(16,) * 7,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            feat_extract_norm="layer",
            do_stable_layer_norm=True,
            pad_token_id=0,
        )
    ).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(std=1.0)
        model.lm_head.bias[1:4], model.lm_head.bias[4] = -1e4, 3.0
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    return {"model": model, "tokenizer": Wav2Vec2CTCTokenizer(str(path)), "feature_extractor": extractor}


@pytest.fixture(scope="module")
def characters(wav2vec2, tmp_path_factory):
    """A 2-gram model that likes some pairs of letters."""
    units = [*LETTERS, "|"]
    rng = np.random.default_rng(1)
    lines = ["\\data\\", f"ngram 1={len(units) + 3}", f"ngram 2={len(units) ** 2}", "", "\\1-grams:", "-99\t<s>\t0"]
    lines += ["-2\t</s>", "-4\t<unk>\t0", *(f"-1\t{unit}\t-0.1" for unit in units), "", "\\2-grams:"]
    lines += [f"{-3 * rng.random():.3f}\t{one} {other}" for one, other in itertools.product(units, units)]
    path = tmp_path_factory.mktemp("lm") / "characters.arpa"
    path.write_text("\n".join([*lines, "", "\\end\\", ""]))
    return NGramLM.from_arpa(path, wav2vec2["tokenizer"])


@pytest.fixture(scope="module")
def noise():
    """A slow change of loudness and colour in noise, so that labels come and go; three lengths."""
    rng = np.random.default_rng(2)
    found = []
    for length in (41_337, 64_000, 30_001):
        loudness = np.repeat(rng.exponential(size=length // 1600 + 1), 1600)[:length]
        found.append((loudness * rng.standard_normal(length)).astype(np.float32))
    return found


def parts(asr):
    return {"model": asr.model, "tokenizer": asr.tokenizer, "feature_extractor": asr.feature_extractor}


def logits_of(asr, audio):
    """Logits of one recording and the number of its frames, with neither padding nor the pipeline."""
    inputs = asr["feature_extractor"](audio, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True)
    with torch.no_grad():
        logits = asr["model"](**inputs).logits
    return logits, frame_lengths(asr["model"], inputs["attention_mask"].sum(-1)).clamp(max=logits.shape[1])


def cut_logits(asr, audio, frame, chunk, left, right):
    """Logits of overlapping chunks (all in frames of so many samples), without what the strides cover, in one row."""
    pieces = []
    for first in range(0, math.ceil(len(audio) / frame), chunk - left - right):
        samples = audio[first * frame : (first + chunk) * frame]
        is_last = (first + chunk) * frame >= len(audio)
        logits, length = logits_of(asr, samples)
        end = min(round(len(samples) / frame) - (0 if is_last else right), int(length))
        pieces.append(logits[:, left if first else 0 : end])
        if is_last:
            break
    assert len(pieces) > 1
    joined = torch.cat(pieces, dim=1)
    assert abs(joined.shape[1] - len(audio) / frame) < 2  # neither gaps nor doubles
    return joined


def decode(asr, audio, lm, weight=WEIGHT, **kwargs):
    """What the pipeline should say: CTCDecoder on the model's logits."""
    ((best,),) = CTCDecoder(asr["tokenizer"], lm, weight, **{"num_beams": 1, **kwargs})(*logits_of(asr, audio))
    return best.text


def texts(results):
    return [result["text"] for result in results]


# -- without a language model


@pytest.mark.parametrize("settings", [{}, {"lm": None}], ids=["none", "lm=None"])
@pytest.mark.parametrize("kind", ["parakeet", "wav2vec2"])
def test_without_lm_it_is_the_stock_pipeline(plain, wav2vec2, audios, noise, kind, settings):
    inputs = audios[:4] if kind == "parakeet" else noise
    of = parts(plain) if kind == "parakeet" else wav2vec2
    stock = AutomaticSpeechRecognitionPipeline(**of)
    ours = pipeline(TASK, **of, **settings)
    assert type(ours) is CTCNGramPipeline and type(stock) is AutomaticSpeechRecognitionPipeline

    def both(make, **kwargs):
        expected, found = (asr(make(), **kwargs) for asr in (stock, ours))
        if not isinstance(expected, dict | list):
            expected, found = list(expected), list(found)
        assert found == expected
        return found

    assert both(lambda: inputs[0].copy())["text"]
    assert len(both(lambda: [audio.copy() for audio in inputs])) == len(inputs)
    both(lambda: [audio.copy() for audio in inputs], batch_size=3)
    assert len(both(lambda: (audio.copy() for audio in inputs), batch_size=2)) == len(inputs)
    both(lambda: {"raw": inputs[1].copy(), "sampling_rate": RATE, "file": "second.wav"})
    if kind == "wav2vec2":  # stock Parakeet has neither of these
        for timestamps in ("word", "char", None):
            both(lambda: inputs[1].copy(), return_timestamps=timestamps, chunk_length_s=1.0)
            both(lambda: [audio.copy() for audio in inputs], return_timestamps=timestamps, batch_size=2)
        both(lambda: inputs[1].copy(), chunk_length_s=1.0, stride_length_s=(0.3, 0.1), batch_size=4)
        both(lambda: {"raw": inputs[0].copy(), "sampling_rate": RATE, "stride": (3200, 1600)})


def test_lm_none_for_a_call(with_lm, plain, audios):
    assert [with_lm(a.copy(), lm=None) for a in audios] == [plain(a.copy()) for a in audios]
    assert texts(with_lm([a.copy() for a in audios], lm=None, batch_size=3)) != texts(with_lm([a.copy() for a in audios]))


# -- with one


@pytest.mark.parametrize("kind", ["object", "folder", "arpa", "path"])
def test_lm_by_object_folder_and_file(plain, lm, audios, tmp_path, kind):
    if kind == "folder":
        lm.save_pretrained(tmp_path / "lm")
    source = {"object": lm, "folder": str(tmp_path / "lm"), "arpa": str(ARPA), "path": ARPA}[kind]
    asr = pipeline(TASK, **parts(plain), lm=source, lm_weight=WEIGHT, num_beams=1)
    for audio in audios[:2]:
        assert asr(audio.copy()) == {"text": decode(parts(plain), audio, lm)}


def test_default_weight_is_the_decoders(plain, lm, audios):
    ((best,),) = CTCDecoder(plain.tokenizer, lm)(*logits_of(parts(plain), audios[0]))
    assert pipeline(TASK, **parts(plain), lm=lm)(audios[0].copy())["text"] == best.text


@pytest.mark.parametrize("batch_size", [1, 3, 6])
def test_batches_lists_and_generators(with_lm, lm, audios, batch_size):
    expected = [decode(parts(with_lm), audio, lm) for audio in audios]
    assert texts(with_lm([audio.copy() for audio in audios], batch_size=batch_size)) == expected
    assert texts(with_lm((audio.copy() for audio in audios), batch_size=batch_size)) == expected
    named = ({"raw": audio.copy(), "sampling_rate": RATE, "number": i} for i, audio in enumerate(audios))
    results = list(with_lm(named, batch_size=batch_size))
    assert texts(results) == expected and [result["number"] for result in results] == [[i] for i in range(len(audios))]


def test_settings_for_a_call(with_lm, plain, lm, audios):
    audio, of = audios[0], parts(plain)
    with_defaults = decode(of, audio, lm)
    other = NGramLM.from_table(lm.to_table())  # of the same ids, with nothing known of a tokenizer
    other.tensors.arc_weights.mul_(0.1)
    for settings, expected in (
        ({"lm_weight": 0.2}, decode(of, audio, lm, 0.2)),
        ({"lm_weight": 0.0}, decode(of, audio, lm, 0.0)),
        ({"lm_weight": 3}, decode(of, audio, lm, 3.0)),
        ({"lm": other}, decode(of, audio, other)),
        ({"lm": str(ARPA)}, with_defaults),
        ({"repeats": "label"}, decode(of, audio, lm, repeats="label")),
        ({"engine": "reference"}, with_defaults),
        ({"lm": None}, plain(audio.copy())["text"]),
        ({}, with_defaults),  # none of these lasts
    ):
        assert with_lm(audio.copy(), **settings)["text"] == expected, settings
    assert plain(audio.copy(), lm=lm, lm_weight=WEIGHT, num_beams=1)["text"] == with_defaults  # none at construction
    assert plain(audio.copy())["text"] == with_lm(audio.copy(), lm=None)["text"]
    assert decode(of, audio, lm, 3.0) != with_defaults


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    ("seconds", "frames"),
    [({"chunk_length_s": 1.6}, (20, 3, 3)), ({"chunk_length_s": 2, "stride_length_s": (0.4, 0.25)}, (25, 5, 3))],
)
def test_chunks(with_lm, lm, audios, seconds, frames, batch_size):
    decoder = CTCDecoder(with_lm.tokenizer, lm, WEIGHT, num_beams=1)
    for audio in audios[:3]:
        ((best,),) = decoder(cut_logits(parts(with_lm), audio, 1280, *frames))
        assert with_lm(audio.copy(), **seconds, batch_size=batch_size) == {"text": best.text}
    together = with_lm([audio.copy() for audio in audios[:3]], **seconds, batch_size=batch_size)
    assert together == [with_lm(audio.copy(), **seconds) for audio in audios[:3]]


def test_samples_per_frame(with_lm, character_asr):
    """Exactly: chunks are cut at multiples of it."""
    assert (with_lm._samples_per_frame, character_asr._samples_per_frame) == (1280, 320)


def test_a_chunk_longer_than_the_audio_changes_nothing(with_lm, lm, audios):
    assert with_lm(audios[0].copy(), chunk_length_s=30)["text"] == decode(parts(with_lm), audios[0], lm)


def test_lm_lowers_the_word_error_rate(plain, with_lm, clips):
    references = [text for _, text in clips]
    without, fused = (
        jiwer.wer(references, texts(asr([audio.copy() for audio, _ in clips], batch_size=8))) for asr in (plain, with_lm)
    )
    assert fused <= 0.75 * without, (without, fused)


# -- a model of characters, with timestamps


def timestamps_of(labels, tokenizer, kind):
    """Text and times of characters or words, from the label of each frame."""
    characters, frame = [], 0
    for label, group in itertools.groupby(labels):
        length = len(list(group))
        if label != tokenizer.pad_token_id:
            character = tokenizer.convert_ids_to_tokens(label).replace("|", " ")
            characters.append({"text": character, "timestamp": (frame * 320 / RATE, (frame + length) * 320 / RATE)})
        frame += length
    if kind == "char":
        return characters
    words = []
    for is_blank, group in itertools.groupby(characters, key=lambda character: character["text"] == " "):
        if not is_blank:
            word = list(group)
            times = (word[0]["timestamp"][0], word[-1]["timestamp"][1])
            words.append({"text": "".join(character["text"] for character in word), "timestamp": times})
    return words


def path_of(asr, lm, *logits):
    return CTCDecoder(asr["tokenizer"], lm, 0.7).label_frames(*logits).labels[0].tolist()


@pytest.fixture(scope="module")
def character_asr(wav2vec2, characters):
    return pipeline(TASK, **wav2vec2, lm=characters, lm_weight=0.7, num_beams=1)


@pytest.mark.parametrize("kind", ["word", "char"])
def test_timestamps(character_asr, wav2vec2, characters, noise, kind):
    found = [character_asr(audio.copy(), return_timestamps=kind) for audio in noise]
    for audio, result in zip(noise, found):
        logits, lengths = logits_of(wav2vec2, audio)
        path = path_of(wav2vec2, characters, logits, lengths)
        assert path != path_of(wav2vec2, None, logits, lengths)  # the LM matters
        assert result["text"] == decode(wav2vec2, audio, characters, 0.7)
        assert result["chunks"] == timestamps_of(path, wav2vec2["tokenizer"], kind)
        assert len(result["chunks"]) > 1
    assert character_asr([audio.copy() for audio in noise], return_timestamps=kind, batch_size=3) == found


@pytest.mark.parametrize("kind", ["word", "char"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_timestamps_over_chunks(character_asr, wav2vec2, characters, noise, kind, batch_size):
    settings = {"chunk_length_s": 1.0, "stride_length_s": (0.2, 0.1), "return_timestamps": kind, "batch_size": batch_size}
    for audio in noise:
        path = path_of(wav2vec2, characters, cut_logits(wav2vec2, audio, 320, 50, 10, 5))
        result = character_asr(audio.copy(), **settings)
        assert result["chunks"] == timestamps_of(path, wav2vec2["tokenizer"], kind)
        assert result["text"] == wav2vec2["tokenizer"].decode(path)


def test_a_stride_in_the_input(character_asr, wav2vec2, characters, noise):
    """Samples on both sides that are heard, but not transcribed."""
    raw = {"raw": noise[0].copy(), "sampling_rate": RATE, "stride": (3200, 1600)}
    logits, _ = logits_of(wav2vec2, noise[0])
    path = path_of(wav2vec2, characters, logits[:, 10 : round(len(noise[0]) / 320) - 5])
    assert character_asr(raw)["text"] == wav2vec2["tokenizer"].decode(path)


def test_the_blank_is_the_tokenizers(wav2vec2, characters, noise, monkeypatch):
    """As in the stock pipeline, also where a repo's config names another token."""
    monkeypatch.setattr(wav2vec2["model"].config, "pad_token_id", 3)
    asr = pipeline(TASK, **wav2vec2, lm=characters, lm_weight=0.7, num_beams=1)
    assert texts(asr([audio.copy() for audio in noise])) == [decode(wav2vec2, audio, characters, 0.7) for audio in noise]


@pytest.mark.parametrize("settings", [{}, {"num_beams": 4}, {"num_beams": 4, "lm": None}], ids=["greedy", "beam", "no LM"])
def test_words_of_pieces(with_lm, audios, settings):
    """The tokenizer can't tell where its characters lie; the decoder can."""
    of = parts(with_lm)
    decoder_settings = {
        "lm": with_lm._ngram_settings["lm"],
        "lm_weight": WEIGHT,
        "num_beams": 1,
        **settings,
        "frame_seconds": 0.08,
    }
    if decoder_settings["lm"] is None:
        del decoder_settings["lm_weight"]
    decoder = CTCDecoder(of["tokenizer"], **decoder_settings)
    for audio in audios[:3]:
        ((best,),) = decoder(*logits_of(of, audio))
        words = with_lm(audio.copy(), return_timestamps="word", **settings)
        assert words["text"] == best.text == " ".join(chunk["text"] for chunk in words["chunks"])
        assert [chunk["timestamp"] for chunk in words["chunks"]] == [(word.start, word.end) for word in best.words]
        times = [time for chunk in words["chunks"] for time in chunk["timestamp"]]
        assert times == sorted(times) and times[-1] <= len(audio) / RATE + 0.08
        pieces = with_lm(audio.copy(), return_timestamps="char", **settings)["chunks"]
        assert "".join(piece["text"] for piece in pieces).strip() == best.text
        assert [piece["timestamp"][0] for piece in pieces] == pytest.approx([0.08 * frame for frame in best.token_frames])


# -- beam search


def test_num_beams_at_construction_and_in_a_call(plain, with_lm, lm, audios):
    """Parakeet's class can generate, too: the stock pipeline would keep `num_beams` for that."""
    of = parts(plain)
    expected = [decode(of, audio, lm, 1.0, num_beams=4, beta=2.5) for audio in audios]
    asr = pipeline(TASK, **of, lm=lm, lm_weight=1.0, num_beams=4, beta=2.5)
    assert texts(asr([audio.copy() for audio in audios], batch_size=3)) == expected
    settings = {"lm_weight": 1.0, "num_beams": 4, "beta": 2.5}
    assert texts(with_lm([audio.copy() for audio in audios], **settings)) == expected
    assert expected != [decode(of, audio, lm) for audio in audios]
    alone = pipeline(TASK, **of, num_beams=4)
    assert texts(alone([audio.copy() for audio in audios])) == [decode(of, audio, None, 0.5, num_beams=4) for audio in audios]


def test_n_best_lists(with_lm, lm, audios):
    settings = {"num_beams": 6, "num_return_sequences": 3, "confidence": "tsallis"}
    found = with_lm([audio.copy() for audio in audios], **settings, return_timestamps="word", batch_size=4)
    decoder = CTCDecoder(with_lm.tokenizer, lm, WEIGHT, **settings)
    for audio, result in zip(audios, found):
        (n_best,) = decoder(*logits_of(parts(with_lm), audio))
        assert result["text"] == n_best[0].text == result["hypotheses"][0]["text"]
        assert [h["text"] for h in result["hypotheses"]] == [h.text for h in n_best]
        assert [h["score"] for h in result["hypotheses"]] == pytest.approx([h.score for h in n_best], abs=1e-2)
        confidences = [chunk["confidence"] for chunk in result["chunks"]]
        assert confidences == pytest.approx([word.confidence for word in n_best[0].words], abs=1e-3)
        assert result["chunks"] == result["hypotheses"][0]["chunks"]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_beam_runs_on_over_chunks(with_lm, lm, audios, batch_size):
    decoder = CTCDecoder(with_lm.tokenizer, lm, WEIGHT, num_beams=6)
    for audio in audios[:2]:
        ((best,),) = decoder(cut_logits(parts(with_lm), audio, 1280, 20, 3, 3))
        assert with_lm(audio.copy(), chunk_length_s=1.6, num_beams=6, batch_size=batch_size) == {"text": best.text}


# -- wrong uses


def test_lm_for_a_model_that_does_not_transcribe(wav2vec2, characters, noise):
    model = Wav2Vec2Model(wav2vec2["model"].config)
    parts = {"model": model, "tokenizer": wav2vec2["tokenizer"], "feature_extractor": wav2vec2["feature_extractor"]}
    with pytest.raises(ValueError, match=r"CTC models, transducers and encoder-decoders, but .* Wav2Vec2Model"):
        pipeline(TASK, **parts, lm=characters)
    asr = pipeline(TASK, **parts)
    with pytest.raises(ValueError, match="CTC models"):
        asr(noise[0].copy(), lm=characters)


@pytest.mark.parametrize("setting", [{"lm_weight": 0.5}, {"repeats": "run"}, {"engine": "cpu"}, {"num_return_sequences": 2}])
def test_settings_without_lm(plain, audios, setting):
    (name,) = setting
    for settings in (setting, {**setting, "lm": None}):
        with pytest.raises(ValueError, match=f"{name} given without lm="):
            pipeline(TASK, **parts(plain), **settings)
    with pytest.raises(ValueError, match=f"{name} given without lm="):
        plain(audios[0].copy(), **setting)


def test_lm_of_another_tokenizer(plain, with_lm, wav2vec2, lm, characters, audios):
    with pytest.raises(TokenizerMismatchError, match=r"scores 256 token ids.*has only 13"):
        pipeline(TASK, **wav2vec2, lm=lm)
    with pytest.raises(TokenizerMismatchError, match="gives its first 13 ids other pieces"):
        with_lm(audios[0].copy(), lm=characters)
    assert with_lm(audios[0].copy())["text"] == decode(parts(plain), audios[0], lm)  # still as before


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"lm": "no/such/folder"}, FileNotFoundError, "neither a folder nor"),
        ({"lm": str(bundled("examples/models/ctc"))}, ValueError, "not an n-gram language model"),
        ({"lm_weight": math.nan}, ValueError, "lm_weight"),
        ({"repeats": "never"}, ValueError, "repeats should be one of"),
        ({"num_beams": 0}, ValueError, "num_beams should be"),
        ({"beta": 1.0, "num_beams": 1}, ValueError, "beta without a beam"),
        ({"num_beam": 8}, ValueError, "num_beam: there is no such setting; did you mean num_beams"),
        ({"lmweight": 1.0}, ValueError, "did you mean lm_weight"),
    ],
)
def test_bad_settings(plain, with_lm, lm, audios, settings, error, message):
    with pytest.raises(error, match=message):
        pipeline(TASK, **parts(plain), **{"lm": lm, **settings})
    with pytest.raises(error, match=message):
        with_lm(audios[0].copy(), **settings)
