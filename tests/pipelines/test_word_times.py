"""Word times of encoder-decoders other than Whisper, with and without a language model, in batches and chunks."""

from __future__ import annotations

import difflib

import numpy as np
import pytest
import torch
from speech_models import FAMILIES
from transformers import pipeline

from hf_ngpulm import NGramLM
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.pipelines.word_times import TimedWord, joined
from hf_ngpulm.sound.files import read_audio

if "canary" not in FAMILIES:
    pytest.skip("Transformers without Canary", allow_module_level=True)

TASK = "automatic-speech-recognition"
DEMO = bundled("examples/speech/harbour")
RATE = 16000


@pytest.fixture(scope="module")
def clips():
    return [read_audio(path, RATE) for path in sorted((DEMO / "clips").iterdir())[:4]]


@pytest.fixture(scope="module")
def canary():
    return pipeline(TASK, model=str(bundled("examples/models/canary")), dtype=torch.float32)


def copied(clips):
    return [clip.copy() for clip in clips]


@pytest.fixture(scope="module")
def transducer():
    """Which emits tokens where they are said."""
    return pipeline(TASK, model=str(bundled("examples/models/tdt")), dtype=torch.float32, num_beams=2)


def apart(ours, theirs):
    """By how many seconds starts and ends of the words differ that both have found."""
    words = [[chunk["text"] for chunk in chunks] for chunks in (ours, theirs)]
    found = []
    for block in difflib.SequenceMatcher(None, *words, autojunk=False).get_matching_blocks():
        for at in range(block.size):
            pair = zip(ours[block.a + at]["timestamp"], theirs[block.b + at]["timestamp"])
            found += [abs(one - other) for one, other in pair]
    return found


def test_times_are_those_of_a_transducer(canary, transducer, clips):
    both = [asr(copied(clips), return_timestamps="word") for asr in (canary, transducer)]
    found = [each for ours, theirs in zip(*both) for each in apart(ours["chunks"], theirs["chunks"])]
    assert len(found) >= 40
    assert np.median(found) <= 0.0801 and np.quantile(found, 0.9) <= 0.1601


@pytest.mark.parametrize("settings", [{}, {"num_beams": 1}, {"phrases": ["harbour master"]}])
def test_batches_and_texts(settings, canary, clips):
    alone = [canary(clip, return_timestamps="word", **settings) for clip in copied(clips)]
    assert [found["text"] for found in alone] == [found["text"] for found in canary(copied(clips), **settings)]
    for found, clip in zip(alone, clips):
        chunks = found["chunks"]
        assert " ".join(chunk["text"] for chunk in chunks) == found["text"]
        times = [time for chunk in chunks for time in chunk["timestamp"]]
        assert times == sorted(times) and times[0] == 0 and len(clip) / RATE - 0.8 < times[-1] <= len(clip) / RATE
    assert canary(copied(clips), return_timestamps="word", batch_size=3, **settings) == alone


def test_with_a_language_model_and_in_half_precision(canary, clips):
    lm = NGramLM.from_arpa(DEMO / "lm.arpa.gz", canary.tokenizer)
    words = canary(clips[0].copy(), lm=lm, lm_weight=0.9, return_timestamps="word")
    assert words["text"] == canary(clips[0].copy(), lm=lm, lm_weight=0.9)["text"] != canary(clips[0].copy())["text"]
    assert " ".join(chunk["text"] for chunk in words["chunks"]) == words["text"]
    half = pipeline(TASK, model=str(bundled("examples/models/canary")), dtype=torch.float16, return_timestamps="word")
    assert half(clips[0].copy())["chunks"] == canary(clips[0].copy(), return_timestamps="word")["chunks"]
    assert half(clips[0].copy(), return_timestamps=False).keys() == {"text"}
    silence = canary(np.zeros(1600, dtype=np.float32), return_timestamps="word")
    assert len(silence["chunks"]) == len(silence["text"].split())


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3])
def test_long_audio_in_chunks(batch_size, canary, clips):
    """Of which each is the same clip, so that the words of all are known."""
    seconds = len(clips[0]) / RATE
    settings = {"return_timestamps": "word", "num_beams": 1, "ignore_warning": True, "batch_size": batch_size}
    (alone,) = canary(copied(clips[:1]), **settings)
    found = canary(np.tile(clips[0], 3), chunk_length_s=seconds, stride_length_s=0, **settings)
    assert found["text"] == " ".join([alone["text"]] * 3) == " ".join(chunk["text"] for chunk in found["chunks"])
    times = [time + cut * seconds for cut in range(3) for chunk in alone["chunks"] for time in chunk["timestamp"]]
    assert [time for chunk in found["chunks"] for time in chunk["timestamp"]] == pytest.approx(times, abs=1e-5)

    # What chunks share is said once: fewer words than the stock pipeline has, which says it twice.
    long, cut = np.concatenate(clips), {"chunk_length_s": 4, "stride_length_s": 1, "num_beams": 1, "ignore_warning": True}
    found = canary(long.copy(), return_timestamps="word", batch_size=batch_size, **cut)
    assert found["text"].split() == [chunk["text"] for chunk in found["chunks"]]
    assert len(found["chunks"]) < 0.8 * len(canary(long.copy(), **cut)["text"].split())
    starts = [chunk["timestamp"][0] for chunk in found["chunks"]]
    assert starts == sorted(starts) and len(long) / RATE - 1 < starts[-1] < len(long) / RATE


def test_each_word_once():
    def word(text, start, end):
        return TimedWord(text, [len(text)], start, end)

    first = [word("a", 0.0, 0.4), word("bb", 2.8, 3.1), word("cut", 3.2, 3.5)]
    second = [word("b", 0.0, 0.4), word("ccc", 0.9, 1.4), word("dddd", 3.4, 3.9)]
    pieces = [(first, (40, 0, 8)), (second, (40, 8, 0))]  # at ten samples a second: the second begins at 2.4 s
    found = [(each.text, each.start, each.end) for each in joined(pieces, 10)]
    assert found == [("a", 0.0, 0.4), ("bb", 2.8, 3.1), ("ccc", 3.3, 3.8), ("dddd", 5.8, 6.3)]
    assert joined([(first, None)], 10) == first
    second[1] = word("ccc", 0.5, 1.3)  # begins before the word before it has ended: at 2.9 s
    assert joined(pieces, 10)[2] == word("ccc", 3.1, 3.7)


def test_refusals(canary, clips):
    for timestamps in (True, "char"):
        with pytest.raises(ValueError, match="CanaryForConditionalGeneration only supports 'word'"):
            canary(clips[0].copy(), return_timestamps=timestamps)
    with pytest.raises(ValueError, match="supports one transcript per recording"):
        canary(clips[0].copy(), return_timestamps="word", generate_kwargs={"num_return_sequences": 2})
    if "qwen3_asr" in FAMILIES:
        model = FAMILIES["qwen3_asr"]().model
        parts = {"tokenizer": canary.tokenizer, "feature_extractor": canary.feature_extractor}
        with pytest.raises(ValueError, match=r"Qwen3ASRFor\w+ has no cross-attention.*CTC model, a transducer"):
            pipeline(TASK, model=model, **parts, return_timestamps="word")
