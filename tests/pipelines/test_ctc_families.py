"""Every family of CTC models in Transformers, through the pipeline with a language model.

Each has a tiny model with random weights, tuned only so far that it says something: blank is frequent, and all other classes
have their turns. What the pipeline should say is computed beside it, from the model's own logits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from transformers import (
    AutomaticSpeechRecognitionPipeline,
    AutoModelForCTC,
    BatchFeature,
    SequenceFeatureExtractor,
    Wav2Vec2CTCTokenizer,
    pipeline,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CTC_MAPPING_NAMES
from transformers.pipelines.base import pad_collate_fn
from transformers.utils import is_torchaudio_available

from hf_ngpulm import CTCDecoder, CTCNGramPipeline, NGramLM, StreamingRecognizer

TASK = "automatic-speech-recognition"
RATE = 16000
WEIGHT = 0.8
LETTERS = "abcdefgh"
PIECES = ["▁", "▁a", "▁be", *LETTERS, "ab", "ch", "de"]


# -- vocabularies


def characters(vocabulary: list[str]) -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.json"
        path.write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
        return Wav2Vec2CTCTokenizer(str(path))


def byte_pairs(vocabulary: list[str]) -> Any:
    merges = [(piece[0], piece[1:]) for piece in vocabulary if piece in PIECES and len(piece) == 2]
    merges += [("▁b", "e")]
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    named = getattr(transformers, "ParakeetTokenizer", None) or transformers.ParakeetTokenizerFast
    return named(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")


def unigrams(pieces: list[str]) -> Any:
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((piece, -2.0) for piece in pieces)]
    vocabulary += [(f"<extra_id_{i}>", 0.0) for i in (2, 1, 0)]
    return transformers.LasrTokenizer(vocab=vocabulary, extra_ids=3)


def spaced(vocabulary: list[str]) -> Any:
    """OmniASR's tokenizer: pieces begin with the space itself, and the blank is `<s>`, not the padding."""
    merges = [(piece[0], piece[1:]) for piece in vocabulary if len(piece) == 2] + [(" b", "e")]
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_next")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.ParakeetTokenizer(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


VOCABULARIES = {
    "blank first": lambda: characters(["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS]),
    "blank in the middle": lambda: characters(["|", *LETTERS[:4], "<pad>", *LETTERS[4:], "<unk>", "<s>", "</s>"]),
    "blank behind the letters": lambda: characters([*LETTERS, "|", "<unk>", "<pad>", "<s>", "</s>"]),
    "blank last": lambda: characters(["<s>", "</s>", "<unk>", "|", *LETTERS, "<pad>"]),
    "pieces, blank last": lambda: byte_pairs(["<unk>", *PIECES[:4], "▁b", *PIECES[4:], "<pad>"]),
    "pieces, blank first": lambda: byte_pairs(["<pad>", "<unk>", *PIECES[:4], "▁b", *PIECES[4:]]),
    "spaced pieces, blank before the padding": lambda: spaced(
        ["<s>", "<pad>", "</s>", "<unk>", *(piece.replace("▁", " ") for piece in [*PIECES, "▁b"])]
    ),
    "unigrams, blank first": lambda: unigrams(PIECES),
}


# -- families


@dataclass(frozen=True)
class Family:
    """How to build a model of one kind.

    Args:
        model: name of its class.
        sizes: arguments of its config.
        vocabulary: one of `VOCABULARIES`.
        extractor: makes its feature extractor.
        frame: samples from one frame of the logits to the next.
        sees_padding: why the end of a clip depends on the padding after it, in spite of the attention mask.
        spare_classes: classes of the model beyond the tokenizer's ids.
    """

    model: str
    sizes: dict[str, Any]
    vocabulary: str
    extractor: Callable[[], Any] = transformers.Wav2Vec2FeatureExtractor
    frame: int = 320
    sees_padding: str | None = None
    spare_classes: int = 0


def extractor(name: str, **sizes: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, name)(**sizes)


def granite_features() -> Any:
    return transformers.GraniteSpeech5FeatureExtractor(num_mel_bins=4) if is_torchaudio_available() else StackedFrames()


class StackedFrames(SequenceFeatureExtractor):
    """Stands in for Granite's extractor, which needs torchaudio: features of the same shape, one row per 20 ms, and a mask."""

    model_input_names = ("input_features", "attention_mask")

    def __init__(self) -> None:
        super().__init__(feature_size=16, sampling_rate=RATE, padding_value=0.0)
        self.hop_length = 160

    def __call__(self, raw_speech: Any, **kwargs: Any) -> BatchFeature:
        samples = torch.as_tensor(np.asarray(raw_speech), dtype=torch.float32).flatten()
        rows = samples[: len(samples) // 320 * 320].reshape(-1, 16, 20)
        features = torch.log(rows.square().mean(-1) + 1e-3)[None]
        return BatchFeature({"input_features": features, "attention_mask": torch.ones(features.shape[:2], dtype=torch.int64)})


def small(**sizes: Any) -> dict[str, Any]:
    """Wav2Vec2 and most of its descendants."""
    transformer = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    convolutions = {"conv_dim": (16,) * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    return {**transformer, **convolutions, "feat_extract_norm": "layer", **sizes}


def encoder(**sizes: Any) -> dict[str, Any]:
    """Models whose encoder has a config of its own."""
    transformer = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return {"encoder_config": {**transformer, "num_mel_bins": 16, **sizes}}


OWN_BATCHES = "OmniASRForCTC"  # the stock pipeline of Transformers 5.24 can't run it, nor make batches for it
OMNI = {name: size for name, size in small().items() if name != "feat_extract_norm"}
STRIDED = {"subsampling_conv_channels": 4, "max_position_embeddings": 200}
SEW = {"conv_dim": (16,) * 13, "squeeze_factor": 2}
ADAPTER = "the adapter's convolution reaches into it"
POSITIONS = "of several convolutions of positions only the first meets zeros there"
GROUP_NORM = "group norms in the convolutions are over time; such checkpoints are trained without a mask"
CONVOLUTION = "the convolutions of the encoder layers reach into it"
PAIRS = "frames are joined in pairs, an odd last one with the padding"

FAMILIES = {
    "data2vec-audio": Family(
        "Data2VecAudioForCTC", small(conv_pos_kernel_size=3), "blank in the middle", sees_padding=POSITIONS
    ),
    "granite_speech5_ctc": Family(
        "GraniteSpeech5ForCTC",
        encoder(num_hidden_layers=3, context_size=16, max_position_embeddings=16, num_mel_bins=4),
        "pieces, blank first",
        granite_features,
        frame=1280,
        spare_classes=2,
    ),
    "hubert": Family("HubertForCTC", small(do_stable_layer_norm=True), "blank behind the letters"),
    "hubert, group norm": Family("HubertForCTC", small(feat_extract_norm="group"), "blank last", sees_padding=GROUP_NORM),
    "lasr_ctc": Family(
        "LasrForCTC",
        encoder(**STRIDED),
        "unigrams, blank first",
        extractor("LasrFeatureExtractor", feature_size=16),
        frame=640,
    ),
    "mctct": Family(
        "MCTCTForCTC",
        {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "input_feat_per_channel": 16,
        },
        "blank in the middle",
        extractor("MCTCTFeatureExtractor", feature_size=16),
        frame=480,
    ),
    "omniasr_ctc": Family(
        "OmniASRForCTC",
        {"audio_config": OMNI, "blank_token_id": 0},
        "spaced pieces, blank before the padding",
        extractor("OmniASRFeatureExtractor"),
    ),
    "parakeet_ctc": Family(
        "ParakeetForCTC",
        encoder(**STRIDED),
        "pieces, blank last",
        extractor("ParakeetFeatureExtractor", feature_size=16),
        frame=1280,
    ),
    "sew": Family("SEWForCTC", small(**SEW), "blank last", sees_padding=PAIRS),
    "sew-d": Family("SEWDForCTC", small(**SEW, position_buckets=8), "blank first", sees_padding=PAIRS),
    "unispeech": Family("UniSpeechForCTC", small(), "blank behind the letters"),
    "unispeech-sat": Family("UniSpeechSatForCTC", small(), "blank in the middle"),
    "wav2vec2": Family("Wav2Vec2ForCTC", small(do_stable_layer_norm=True), "blank first"),
    "wav2vec2, group norm": Family("Wav2Vec2ForCTC", small(feat_extract_norm="group"), "blank first", sees_padding=GROUP_NORM),
    "wav2vec2, adapter": Family(
        "Wav2Vec2ForCTC", small(add_adapter=True, num_adapter_layers=1), "blank last", frame=640, sees_padding=ADAPTER
    ),
    "wav2vec2-bert": Family(
        "Wav2Vec2BertForCTC",
        small(feature_projection_input_dim=160),
        "blank last",
        extractor("SeamlessM4TFeatureExtractor"),
    ),
    "wav2vec2-conformer": Family("Wav2Vec2ConformerForCTC", small(), "blank first", sees_padding=CONVOLUTION),
    "wavlm": Family("WavLMForCTC", small(), "blank behind the letters"),
}


def noise(seconds: float, seed: int) -> np.ndarray:
    """Noise whose loudness and colour change every tenth of a second, so that labels come and go."""
    rng = np.random.default_rng(seed)
    pieces = []
    for _ in range(math.ceil(seconds * 10)):
        colour = rng.standard_normal(rng.integers(1, 8))
        pieces.append(rng.exponential() * np.convolve(rng.standard_normal(RATE // 10 + 8), colour)[8 : 8 + RATE // 10])
    return np.concatenate(pieces)[: int(seconds * RATE)].astype(np.float32)


CLIPS = [noise(seconds, seed) for seed, seconds in enumerate((0.83, 1.0, 0.61))]
LONG = noise(3.3, 3)


@dataclass(frozen=True)
class Recogniser:
    """A model with all that goes with it, and a language model over words of its own letters."""

    family: Family
    parts: dict[str, Any]
    blank: int
    lm: NGramLM

    def pipeline(self, **settings: Any) -> Any:
        return pipeline(TASK, **self.parts, device="cpu", **settings)

    def stock(self) -> Any:
        return AutomaticSpeechRecognitionPipeline(**self.parts, device="cpu")

    def decode(self, logits: torch.Tensor) -> str:
        """What the pipeline should say for one row of logits."""
        ((best,),) = CTCDecoder(self.parts["tokenizer"], self.lm, WEIGHT, num_beams=1, blank_id=self.blank)(logits)
        return best.text

    def batch(self, *clips: np.ndarray) -> dict[str, torch.Tensor]:
        """What the model is given, padded as the stock pipeline does."""
        extract = self.parts["feature_extractor"]
        if self.family.model == OWN_BATCHES:
            return dict(extract(list(clips), sampling_rate=RATE))
        inputs = [dict(extract(clip, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True)) for clip in clips]
        return pad_collate_fn(self.parts["tokenizer"], extract)(inputs)

    def logits(self, *clips: np.ndarray) -> list[torch.Tensor]:
        """`[1, T, C]` for each clip of a batch, without the frames of the padding."""
        batch = self.batch(*clips)
        with torch.no_grad():
            logits = self.parts["model"](**batch).logits
        masks = batch["attention_mask" if "attention_mask" in batch else "padding_mask"]
        return [row[None, : self._frames(mask, logits.shape[1])] for row, mask in zip(logits, masks)]

    def generated(self, *clips: np.ndarray) -> list[str]:
        """What the model's own `generate` says, where it has one."""
        return [self.spelled(row) for row in self.parts["model"].generate(**self.batch(*clips))]

    def spelled(self, labels: torch.Tensor) -> str:
        """The tokenizer's text of a row of labels; a blank that isn't its padding is a special token to it, like others."""
        text = self.parts["tokenizer"].decode(labels.tolist())
        return text.replace("<s>", "") if "blank_token_id" in self.family.sizes else text

    def cut_logits(self, audio: np.ndarray, chunk: int, left: int, right: int, batch_size: int) -> torch.Tensor:
        """Logits of overlapping chunks, without what the strides cover, in one row. Lengths in frames."""
        frame, step = self.family.frame, chunk - left - right
        count = 1 + math.ceil(max(len(audio) / frame - chunk, 0) / step)
        chunks = [audio[i * step * frame : (i * step + chunk) * frame] for i in range(count)]
        batches = [chunks[first : first + batch_size] for first in range(0, count, batch_size)]
        logits = [row for batch in batches for row in self.logits(*batch)]
        ends = [chunk - right] * (count - 1) + [round(len(chunks[-1]) / frame)]
        begins = [0] + [left] * (count - 1)
        return torch.cat([row[:, begin:end] for row, begin, end in zip(logits, begins, ends)], dim=1)

    def _frames(self, mask: torch.Tensor, at_most: int) -> int:
        model = self.parts["model"]
        if hasattr(model, "_get_output_attention_mask"):  # what `generate` of the newer models goes by
            return int(model._get_output_attention_mask(mask[None], target_length=at_most).sum())
        return min(int(model._get_feat_extract_output_lengths(mask.sum())), at_most)


@cache
def recogniser(name: str) -> Recogniser:
    family = FAMILIES[name]
    model_class = getattr(transformers, family.model)
    tokenizer = VOCABULARIES[family.vocabulary]()
    blank = family.sizes.get("blank_token_id", tokenizer.pad_token_id)
    torch.manual_seed(0)
    sizes = {**family.sizes, "vocab_size": len(tokenizer) + family.spare_classes, "pad_token_id": tokenizer.pad_token_id}
    if family.model == "GraniteSpeech5ForCTC":  # an output in the middle of the encoder is fed back
        sizes["encoder_config"] = {**sizes["encoder_config"], "vocab_size": sizes["vocab_size"]}
    model = AutoModelForCTC.from_config(model_class.config_class(**sizes)).eval()
    assert type(model) is model_class
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(LETTERS), size=rng.integers(1, 5))) for _ in range(30)]
    sentences = [" ".join(rng.choice(words, size=5)) for _ in range(60)]
    lm = NGramLM.train(sentences, tokenizer=tokenizer, order=3, workers=1)
    parts = {"model": model, "tokenizer": tokenizer, "feature_extractor": family.extractor()}
    made = Recogniser(family, parts, blank, lm)
    tune(made)
    return made


def tune(made: Recogniser) -> None:
    """Let the model say something: larger weights, then classes that all have their turns, the blank more of them."""
    model = made.parts["model"]
    head = getattr(model, "lm_head", None) or model.ctc_head
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "parametrizations" not in name:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
        for _ in range(3):  # Granite feeds the head's output back into the encoder
            logits = model(**made.batch(LONG)).logits[0]
            scale = 2 / logits.std(0)
            head.weight.mul_(scale.reshape(-1, *[1] * (head.weight.dim() - 1)))
            head.bias.copy_((head.bias - logits.mean(0)) * scale)
        head.bias[made.blank] += 2


@pytest.fixture(scope="module", params=[name for name in FAMILIES if hasattr(transformers, FAMILIES[name].model)])
def made(request: pytest.FixtureRequest) -> Recogniser:
    return recogniser(request.param)


def texts(results: list[dict[str, Any]]) -> list[str]:
    return [result["text"] for result in results]


def copies() -> list[np.ndarray]:
    return [clip.copy() for clip in CLIPS]


# -- what the pipeline says


def test_all_ctc_models_are_here():
    assert set(MODEL_FOR_CTC_MAPPING_NAMES.values()) <= {family.model for family in FAMILIES.values()}


def test_without_lm_it_is_the_stock_pipeline(made):
    stock, ours = made.stock(), made.pipeline()
    assert type(ours) is CTCNGramPipeline
    for settings in ({}, {"batch_size": 3}):
        if made.family.model == OWN_BATCHES:
            batches = [CLIPS] if settings else [[clip] for clip in CLIPS]
            expected = [{"text": text} for batch in batches for text in made.generated(*batch)]
        else:
            expected = stock(copies(), **settings)
        assert ours(copies(), **settings) == ours(copies(), lm=None, **settings) == expected
    assert any(texts(expected))


def test_the_lm_scores_whatever_text_is_made_of(made):
    tokens = made.parts["tokenizer"](" ".join(LETTERS), add_special_tokens=False).input_ids
    assert max(tokens) < made.lm.vocab_size
    assert made.blank not in tokens


def test_lm_gives_what_the_decoder_gives(made):
    ours = made.pipeline(lm=made.lm, lm_weight=WEIGHT, num_beams=1)
    expected = [{"text": made.decode(*made.logits(clip))} for clip in CLIPS]
    assert [ours(clip) for clip in copies()] == expected
    assert expected != made.pipeline()(copies())


def test_batches(made):
    """A clip says in a batch what it says alone, if the model's own logits are the same."""
    ours = made.pipeline(lm=made.lm, lm_weight=WEIGHT, num_beams=1)
    together = texts(ours(copies(), batch_size=3))
    assert together == [made.decode(logits) for logits in made.logits(*CLIPS)]
    if made.family.sees_padding is None:
        assert together == texts(ours(copies()))


def test_an_lm_without_weight_leaves_what_stock_decodes_of_each_clip(made):
    found = texts(made.pipeline(lm=made.lm, lm_weight=0.0, num_beams=1)(copies(), batch_size=3))
    assert found == [made.spelled(logits.argmax(-1)[0]) for logits in made.logits(*CLIPS)]
    longest = 1  # has no padding; after the others stock decodes that too
    if made.family.model != OWN_BATCHES:
        assert found[longest] == texts(made.stock()(copies(), batch_size=3))[longest]
    if hasattr(made.parts["model"], "generate"):
        assert found == made.generated(*CLIPS)


def test_a_favourite_takes_every_place_that_an_lm_can_fill(made):
    """Blanks stay, and so do classes beyond the language model's tokens, special ones among them."""
    tokenizer, size = made.parts["tokenizer"], made.lm.vocab_size
    favourite = tokenizer.convert_tokens_to_ids("e")
    lm = NGramLM.train([[favourite] * 50] * 20, vocab_size=size, order=2)
    expected = []
    for clip in CLIPS:
        labels = made.logits(clip)[0].argmax(-1)[0]
        labels[(labels != made.blank) & (labels < size)] = favourite
        expected.append(made.spelled(labels))
    found = texts(made.pipeline(lm=lm, lm_weight=100.0, num_beams=1)(copies()))
    assert found == expected
    assert "e" in "".join(found)
    assert found != texts(made.pipeline()(copies()))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_chunks_of_long_audio(made, batch_size):
    chunk, left, right = (round(seconds * RATE / made.family.frame) for seconds in (1.28, 0.32, 0.16))
    joined = made.cut_logits(LONG, chunk, left, right, batch_size)
    assert abs(joined.shape[1] - len(LONG) / made.family.frame) < 4  # neither gaps nor doubles
    ours = made.pipeline(lm=made.lm, lm_weight=WEIGHT, num_beams=1, chunk_length_s=1.28, stride_length_s=(0.32, 0.16))
    assert ours(LONG.copy(), batch_size=batch_size) == {"text": made.decode(joined)}


def test_streams_with_a_window_for_whole_clips(made):
    """Together, or where a clip's end depends on the padding one by one."""
    parts = SimpleNamespace(**made.parts)
    recognizer = StreamingRecognizer(parts.model, parts, chunk_seconds=1.28, lm=made.lm, lm_weight=WEIGHT, num_beams=1)
    for clips in [CLIPS] if made.family.sees_padding is None else [[clip] for clip in CLIPS]:
        streams = [recognizer.open() for _ in clips]
        for sid, clip in zip(streams, clips):
            recognizer.push(sid, clip)
            recognizer.end(sid)
        while recognizer.step():
            pass
        assert [recognizer.close(sid)[0].text for sid in streams] == [made.decode(logits) for logits in made.logits(*clips)]


def test_samples_per_frame(made):
    """Chunks are cut at multiples of it."""
    assert made.pipeline(lm=made.lm)._samples_per_frame == made.family.frame
