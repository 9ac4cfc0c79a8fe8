"""pause_seconds: each part of a recording between pauses is decoded as a recording of its own."""

from __future__ import annotations

import heapq
import itertools
import json
from functools import partial

import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForTDT, AutoProcessor, ParakeetForRNNT, pipeline

from hf_ngpulm import InvalidLogitsError, NGramLM, StreamingDecoder, TransducerDecoder
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.pauses import _cuts, pieces_of
from hf_ngpulm.search.networks.model import transducer_of

DEMO = bundled("examples/speech/harbour")
SECONDS = 0.32
LINES = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()][:6]
PHRASES = ["half speed", "the coal lighthouse"]


class Heard:
    """A model, its LM, and two recordings: of four clips and of two, and their lengths."""

    def __init__(self, kind, name):
        self.model = kind.from_pretrained(bundled(f"examples/models/{name}"), dtype=torch.float32).eval()
        self.processor = AutoProcessor.from_pretrained(bundled(f"examples/models/{name}"))
        self.lm = NGramLM.from_arpa(DEMO / "lm.arpa.gz", self.processor.tokenizer)
        clips = [self.encoded(soundfile.read(DEMO / line["audio"], dtype="float32")[0]) for line in LINES]
        rows = [torch.cat(clips[:4]), torch.cat(clips[4:])]
        self.frames, self.lengths = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([*map(len, rows)])
        self.clips = clips

    @torch.inference_mode()
    def encoded(self, samples):
        inputs = self.processor.feature_extractor(samples, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
        frames, lengths = transducer_of(self.model).encode(inputs.input_features, inputs.attention_mask)
        return frames[0, : lengths[0]]

    def decoder(self, **settings):
        return TransducerDecoder(self.model, self.processor, **settings)

    def pieces(self, frames=None, lengths=None, least=4):
        given = (self.frames, self.lengths) if frames is None else (frames, lengths)
        with torch.inference_mode():
            return pieces_of(transducer_of(self.model), *given, least)


@pytest.fixture(scope="module", params=[(ParakeetForRNNT, "rnnt"), (AutoModelForTDT, "tdt")], ids=["RNN-T", "TDT"])
def heard(request):
    return Heard(*request.param)


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 5))
def test_cuts_are_in_the_middle_of_pauses(quiet, least):
    runs = [
        (first, last)
        for first in range(1, len(quiet))
        for last in range(first + least, len(quiet))
        if all(quiet[first:last]) and not quiet[first - 1] and not quiet[last]
    ]
    assert list(_cuts(quiet, least)) == [(first + last) // 2 for first, last in sorted(runs)]


@torch.inference_mode()
def test_what_is_a_pause(heard):
    model = transducer_of(heard.model)
    frames, length = heard.frames[1:], int(heard.lengths[1])
    begin, _ = model.start(1, frames)
    quiet = [
        bool(torch.softmax(model.join(frames[0, t], begin[0])[: model.vocab_size], 0)[model.blank_id] > 0.5)
        for t in range(length)
    ]
    cuts = [0, *_cuts(quiet, 4), length]
    assert [piece[1:] for piece in heard.pieces(frames, heard.lengths[1:])] == list(itertools.pairwise(cuts))
    assert [piece.row for piece in heard.pieces()].count(0) > 1


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 1},
        {"strategy": "alsd", "num_beams": 4, "num_return_sequences": 3},
        {"num_beams": 4, "num_return_sequences": 4, "length_normalization": False, "ilm_weight": 0.2, "confidence": None},
    ],
)
@pytest.mark.parametrize("fused", ["nothing", "for all", "each its own"])
def test_equal_to_pieces_one_by_one(heard, settings, fused):
    given = {"nothing": {}, "for all": {"lm": heard.lm, "lm_weight": 0.6, "phrases": PHRASES}}.get(fused)
    each = [given, given]
    if given is None:
        each = [{"lm": heard.lm, "lm_weight": 0.4, "phrases": PHRASES}, {"lm": None, "lm_weight": 0.4, "phrases": []}]
        given = {"lm": [heard.lm, None], "lm_weight": 0.4, "phrases": [PHRASES, []]}
    found = heard.decoder(**given, **settings, pause_seconds=SECONDS).decode(heard.frames, heard.lengths)
    for row, (hypotheses, own) in enumerate(zip(found, each)):
        own = {name: value for name, value in own.items() if value is not None or name == "lm"}
        alone = heard.decoder(**own, **settings)
        pieces = [piece for piece in heard.pieces() if piece.row == row]
        parts = [alone.decode(heard.frames[row : row + 1, first:last])[0] for _, first, last in pieces]
        quality = partial(together, settings.get("length_normalization", True))
        ways = heapq.nlargest(settings.get("num_return_sequences", 1), itertools.product(*parts), key=quality)
        assert len(hypotheses) == len(ways)
        for hypothesis, way in zip(hypotheses, ways):
            assert hypothesis.token_ids == [token for part in way for token in part.token_ids]
            frames = [frame + piece.first for part, piece in zip(way, pieces) for frame in part.token_frames]
            assert hypothesis.token_frames == frames
            for name in ("score", "acoustic_score", "lm_score"):
                wanted = sum(getattr(part, name) for part in way)
                assert getattr(hypothesis, name) == pytest.approx(wanted, abs=1e-3)
            confidences = [word.confidence for part in way for word in part.words]
            if len(confidences) == len(hypothesis.words) and settings.get("confidence", "max_prob"):  # no cut within a word
                assert [word.confidence for word in hypothesis.words] == pytest.approx(confidences, abs=1e-4)


def together(normalised, way):
    return sum(part.score / (len(part.token_ids) + 1 if normalised else 1) for part in way)


@torch.inference_mode()
def test_silence_between_sentences_is_a_pause(heard):
    model = transducer_of(heard.model)
    begin, _ = model.start(1, heard.frames)
    blank = torch.softmax(model.join(heard.frames, begin)[..., : model.vocab_size], -1)[..., model.blank_id]
    silence = heard.frames[0, int(blank[0, : heard.lengths[0]].argmax())].expand(12, -1)
    row = torch.cat([heard.clips[0], silence, heard.clips[1]])
    middle = len(heard.clips[0]) + 6
    cuts = [piece.first for piece in heard.pieces(row[None], torch.tensor([len(row)]), least=12)]
    assert len(cuts) == 2 and abs(cuts[1] - middle) <= 3
    settings = {"lm": heard.lm, "lm_weight": 0.5, "num_beams": 4}
    alone = [heard.decoder(**settings).decode(clip[None])[0][0].text for clip in heard.clips[:2]]
    found = heard.decoder(**settings, pause_seconds=0.9).decode(row[None])
    assert found[0][0].text == " ".join(alone)


def test_rows_without_speech(heard):
    decoder = heard.decoder(pause_seconds=SECONDS, num_beams=2, num_return_sequences=2)
    found = decoder.decode(heard.frames[:, :20], torch.tensor([0, 20]))
    assert found[0][0].text == "" and found[1] == decoder.decode(heard.frames[1:, :20])[0]
    assert decoder.decode(heard.frames[:0], heard.lengths[:0]) == []


def test_the_pipeline(heard):
    samples = [soundfile.read(DEMO / line["audio"], dtype="float32")[0] for line in LINES[:3]]
    audio = torch.cat([torch.from_numpy(part) for part in samples]).numpy()
    parts = {"tokenizer": heard.processor.tokenizer, "feature_extractor": heard.processor.feature_extractor}
    asr = pipeline("automatic-speech-recognition", model=heard.model, **parts, lm=heard.lm, num_beams=4)
    decoder = heard.decoder(lm=heard.lm, num_beams=4, pause_seconds=SECONDS)
    wanted = decoder.decode(heard.encoded(audio)[None])[0][0].text
    assert asr(audio, pause_seconds=SECONDS)["text"] == wanted and len(wanted.split()) > len(LINES[0]["text"].split())


def test_broken_frames_are_named(heard):
    frames = heard.frames.clone()
    last = heard.pieces()[-1]
    frames[1, last.first + 7] = torch.nan
    with pytest.raises(InvalidLogitsError, match=f"row 1 hold NaN or infinity at frame {last.first + 7}:"):
        heard.decoder(pause_seconds=SECONDS).decode(frames, heard.lengths)


def test_where_it_has_no_meaning(heard):
    with pytest.raises(ValueError, match="pause_seconds is for whole recordings; in streams pass endpoint_seconds"):
        StreamingDecoder(heard.decoder(pause_seconds=SECONDS))
    with pytest.raises(ValueError, match="pause_seconds needs the duration of a frame"):
        TransducerDecoder(heard.model, heard.processor.tokenizer, pause_seconds=SECONDS)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="pause_seconds should be above 0"):
            heard.decoder(pause_seconds=wrong)


def test_the_command_line(tmp_path, capsys):
    samples = [soundfile.read(DEMO / line["audio"], dtype="float32")[0] for line in LINES[:2]]
    audio = torch.cat([torch.from_numpy(part) for part in samples]).numpy()
    path = tmp_path / "two.wav"
    soundfile.write(path, audio, 16000, subtype="FLOAT")
    model = str(bundled("examples/models/rnnt"))
    asr = pipeline("automatic-speech-recognition", model=model, device="cpu")
    wanted = asr({"raw": audio, "sampling_rate": 16000}, pause_seconds=0.16)["text"]
    assert wanted != asr({"raw": audio, "sampling_rate": 16000})["text"]
    assert run(["transcribe", str(path), "--model", model, "--device", "cpu", "--pause", "0.16"]) == 0
    assert capsys.readouterr().out.strip() == wanted
    assert run(["transcribe", str(path), "--model", str(bundled("examples/models/ctc")), "--pause", "0.16"]) == 2
    assert "pause_seconds: no settings for ParakeetForCTC" in capsys.readouterr().err
