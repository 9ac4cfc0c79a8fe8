"""The decoder where Transformers takes one of pyctcdecode's."""

import copy
import sys

import numpy as np
import pytest
import torch
from transformers import AutomaticSpeechRecognitionPipeline, pipeline

from hf_ngpulm import compat
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.compat import build_ctcdecoder
from hf_ngpulm.sound.files import read_audio

TASK = "automatic-speech-recognition"


@pytest.fixture
def audio():
    return np.random.default_rng(0).normal(size=16000).astype(np.float32)


@pytest.fixture
def logits(recogniser, audio):
    features = recogniser["feature_extractor"](audio, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    with torch.no_grad():
        return recogniser["model"](**features).logits[0].numpy()


@pytest.fixture
def standing_in(monkeypatch):
    """As `stand_in` does, until the test ends."""
    for name in [name for name in sys.modules if name.split(".")[0] == "pyctcdecode"]:
        monkeypatch.delitem(sys.modules, name)
    compat.stand_in()
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "pyctcdecode"]:
        del sys.modules[name]


def test_the_pipeline(recogniser, decoder, audio, logits):
    extractor = copy.copy(recogniser["feature_extractor"])
    extractor._processor_class = "Wav2Vec2ProcessorWithLM"  # before version 5 decoders are taken no notice of without it
    asr = pipeline(TASK, **(recogniser | {"feature_extractor": extractor}), decoder=decoder)
    expected = decoder.decode_beams(logits)[0]
    assert asr(audio)["text"] == expected.text
    chunks = asr(audio, return_timestamps="word")["chunks"]
    seconds = recogniser["model"].config.inputs_to_logits_ratio / 16000
    assert [chunk["text"] for chunk in chunks] == [word for word, _ in expected.text_frames]
    times = [(start * seconds, end * seconds) for _, (start, end) in expected.text_frames]
    assert np.allclose([chunk["timestamp"] for chunk in chunks], times)
    given = {"hotwords": ["radio"], "hotword_weight": 30.0, "beam_width": 10}
    assert asr(audio, decoder_kwargs=given)["text"] == decoder.decode(logits, **given)
    long = np.concatenate([audio] * 3)
    assert asr(long, chunk_length_s=1.0, stride_length_s=0.1)["text"]


@pytest.mark.parametrize("more", [{}, {"chunk_length_s": 1.6, "stride_length_s": 0.4}])
def test_times_of_models_whose_config_lacks_their_step(more):
    """As of Parakeet: a frame isn't one sample."""
    if not hasattr(AutomaticSpeechRecognitionPipeline, "_align_to"):
        pytest.skip("this Transformers refuses models whose config lacks it")
    plain = pipeline(TASK, model=str(bundled("examples/models/ctc")), dtype=torch.float32)
    extractor = copy.copy(plain.feature_extractor)
    extractor._processor_class = "Wav2Vec2ProcessorWithLM"
    vocabulary = plain.tokenizer.get_vocab()
    decoder = build_ctcdecoder(sorted(vocabulary, key=vocabulary.get), tokenizer=plain.tokenizer)
    asr = pipeline(TASK, model=plain.model, tokenizer=plain.tokenizer, feature_extractor=extractor, decoder=decoder)
    audio = read_audio(sorted((bundled("examples/speech/harbour") / "clips").iterdir())[0], 16000)
    chunks = asr(audio.copy(), return_timestamps="word", **more)["chunks"]
    times = [time for chunk in chunks for time in chunk["timestamp"]]
    assert times == sorted(times) and 2.5 < times[-1] <= len(audio) / 16000 + 0.08
    if not more:
        assert chunks == plain(audio.copy(), num_beams=4, return_timestamps="word")["chunks"]


def test_the_processor(recogniser, labels, words_arpa, audio, logits, standing_in, tmp_path):
    """`Wav2Vec2ProcessorWithLM` takes none but pyctcdecode's own class, which ours is then."""
    from transformers import Wav2Vec2ProcessorWithLM

    decoder = build_ctcdecoder(labels, words_arpa)
    processor = Wav2Vec2ProcessorWithLM(
        feature_extractor=recogniser["feature_extractor"], tokenizer=recogniser["tokenizer"], decoder=decoder
    )
    assert processor.language_model is decoder.model_container[decoder._model_key]
    expected = decoder.decode_beams(logits)
    found = processor.decode(logits, output_word_offsets=True)
    assert found.text == expected[0].text and found.lm_score == pytest.approx(expected[0].lm_score)
    offsets = [(word["word"], (word["start_offset"], word["end_offset"])) for word in found.word_offsets]
    assert offsets == expected[0].text_frames
    n_best = processor.decode(logits, n_best=3, beam_width=50, beam_prune_logp=-20)
    assert n_best.text == [beam.text for beam in decoder.decode_beams(logits, beam_width=50, beam_prune_logp=-20)[:3]]
    padded = np.full((2, len(logits) + 5, logits.shape[1]), -100.0, dtype=np.float32)
    padded[0, : len(logits)], padded[1, :20] = logits, logits[:20]
    batch = processor.batch_decode(padded, pool=False)
    assert batch.text == [expected[0].text, decoder.decode(logits[:20])]
    weighed = processor.decode(logits, alpha=1.5, beta=-1.0, unk_score_offset=-2.0, lm_score_boundary=False)
    again = build_ctcdecoder(labels, words_arpa, None, 1.5, -1.0, -2.0, False).decode_beams(logits)[0]
    assert weighed.text == again.text and weighed.lm_score == pytest.approx(again.lm_score, abs=1e-3)
    processor.save_pretrained(tmp_path)
    assert (tmp_path / "language_model" / "words.arpa").is_file() and (tmp_path / "alphabet.json").is_file()


def test_standing_in_for_what_is_there_already(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyctcdecode", sys)
    with pytest.raises(RuntimeError, match="imported already"):
        compat.stand_in()
