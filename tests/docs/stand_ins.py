"""What the pages' code finds in place of the Hub's models: the bundled one, and tiny ones with random weights."""

from __future__ import annotations

import io
import json
import math
import shutil
import tarfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import soundfile
import torch
import transformers
import yaml
from causal_lms import causal_lm, letters_tokenizer
from speech_models import configured, randomised, whisper_parts
from tiny_transducers import demo_transducer

from hf_ngpulm import NGramLM
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.compat import build_ctcdecoder
from hf_ngpulm.formats.arpa import write_arpa
from hf_ngpulm.language_model.training import train

DEMO = bundled("examples/speech/harbour")
COMMIT = "0" * 40
CTC, TDT, RNNT = "nvidia/parakeet-ctc-0.6b", "nvidia/parakeet-tdt-0.6b-v3", "nvidia/parakeet-rnnt-0.6b"
WHISPER, WAV2VEC2 = "openai/whisper-tiny", "facebook/wav2vec2-base-960h"
WITH_LM = "org/wav2vec2-with-lm"
LM, WHISPER_LM, WAV2VEC2_LM = "org/my-lm", "org/my-whisper-lm", "org/my-wav2vec2-lm"
CAUSAL = "HuggingFaceTB/SmolLM2-135M"
RATE = 16000
LABELS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"]


def sentences() -> list[str]:
    return (DEMO / "text.txt").read_text(encoding="utf-8").splitlines()


def put(cache: Path, repo_id: str, folder: Path) -> None:
    """Have a Hub cache hold a folder as the repo of that id; in place of the one that it held."""
    root = cache / f"models--{repo_id.replace('/', '--')}"
    if root.exists():
        shutil.rmtree(root)
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    (root / "snapshots").mkdir()
    (root / "snapshots" / COMMIT).symlink_to(folder, target_is_directory=True)


def make_repos(folder: Path) -> dict[str, Path]:
    """Folders of all models that the pages name, by their ids."""
    torch.manual_seed(0)
    repos = {CTC: bundled("examples/models/ctc")}
    for repo_id, name in ((TDT, "ParakeetForTDT"), (RNNT, "ParakeetForRNNT")):
        parts = demo_transducer(name)
        repos[repo_id] = folder / name
        parts["model"].save_pretrained(repos[repo_id])
        for file in ("tokenizer.json", "tokenizer_config.json", "processor_config.json"):
            shutil.copy(bundled("examples/models/ctc") / file, repos[repo_id])

    (folder / "whisper").mkdir()
    parts = whisper_parts(folder / "whisper" / "vocabulary.json")
    parts["model"].config.max_source_positions = 1500  # windows of 30 s, as those who read the pages have
    model = randomised(transformers.WhisperForConditionalGeneration(parts["model"].config))
    model.generation_config = parts["model"].generation_config
    # Of the timestamps only the first one: at any other a new window would begin, and there would be hundreds.
    configured(model, suppress_tokens=[*range(29, 40), *range(41, 91)])
    configured(model, max_new_tokens=9, _from_model_config=False)  # else what there is of it is left behind
    model.save_pretrained(folder / "whisper")
    extractor = transformers.WhisperFeatureExtractor(feature_size=8)
    transformers.WhisperProcessor(extractor, parts["tokenizer"]).save_pretrained(folder / "whisper")
    repos[WHISPER] = folder / "whisper"
    repos[CAUSAL] = folder / "causal"
    causal_lm().save_pretrained(repos[CAUSAL])
    letters_tokenizer().save_pretrained(repos[CAUSAL])
    repos[WAV2VEC2] = _wav2vec2(folder / "wav2vec2")
    repos[WITH_LM] = shutil.copytree(repos[WAV2VEC2], folder / "with-lm")
    _write_words(folder / "words.arpa", repos[WAV2VEC2])
    build_ctcdecoder(LABELS, folder / "words.arpa").save_to_dir(repos[WITH_LM])

    texts, characters = sentences()[:500], transformers.AutoTokenizer.from_pretrained(repos[WAV2VEC2])
    for repo_id, lm in (
        (LM, NGramLM.from_arpa(DEMO / "lm.arpa.gz", str(bundled("examples/models/ctc")))),
        (WHISPER_LM, NGramLM.train(texts, parts["tokenizer"], order=3)),
        (WAV2VEC2_LM, NGramLM.train([text.upper() for text in texts], characters, order=4, workers=1)),
    ):
        repos[repo_id] = folder / repo_id.split("/")[1]
        lm.save_pretrained(repos[repo_id])
    return repos


def _wav2vec2(folder: Path) -> Path:
    """Characters, and `|` between words."""
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({piece: token for token, piece in enumerate(LABELS)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(16, 16, 16),
        conv_stride=(10, 8, 4), conv_kernel=(10, 8, 4), num_feat_extract_layers=3, num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2, vocab_size=len(LABELS), pad_token_id=0,
    )  # fmt: skip
    transformers.Wav2Vec2ForCTC(config).save_pretrained(folder)
    return folder


def _write_words(path: Path, model: Path) -> None:
    """An ARPA file of words in capitals."""
    texts = [text.upper() for text in sentences()[:200]]
    table, words = train(texts, transformers.AutoTokenizer.from_pretrained(model), unit="word", order=2, workers=1).of_words
    write_arpa(table, path, "piece", words)


def make_files(folder: Path, repos: dict[str, Path]) -> None:
    """The files that the pages' code reads, in the folder in which it runs."""
    clips = [soundfile.read(DEMO / "clips" / f"{number:02}.flac", dtype="float32")[0] for number in range(3)]
    for name, samples in (("audio", clips[0]), ("talk", clips[1][:RATE]), ("call", clips[2][: 2 * RATE])):
        soundfile.write(folder / f"{name}.flac", samples, RATE)
    soundfile.write(folder / "lecture.wav", np.concatenate(4 * clips), RATE)
    texts = sentences()
    for name, part in (("transcripts", texts[:300]), ("books", texts[300:600]), ("dev", texts[600:650])):
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")
    (folder / "sentences.txt").write_text("\n".join(texts[650:655]) + "\n", encoding="utf-8")
    (folder / "names.txt").write_text("anna kowalska\nzermatt\nold lighthouse\n", encoding="utf-8")
    (folder / "manifest.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[700:800]))
    # A folder that `datasets` saved, under the name of one on the Hub.
    datasets.Dataset.from_dict({"text": texts[800:900]}).save_to_disk(folder / "org" / "dataset")
    spoken = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text(encoding="utf-8").splitlines()[:3]]
    recordings = [{"audio": str(DEMO / line["audio"]), "text": line["text"]} for line in spoken]
    (folder / "dev.jsonl").write_text("".join(json.dumps(line) + "\n" for line in recordings))
    contents = [{"bytes": Path(line["audio"]).read_bytes(), "path": None} for line in recordings]
    rows = datasets.Dataset.from_dict({"audio": contents, "text": [line["text"] for line in recordings]})
    rows.cast_column("audio", datasets.Audio()).to_parquet(folder / "dev.parquet")
    shutil.copy(DEMO / "lm.arpa.gz", folder / "lm.arpa.gz")
    shutil.copy(repos[WITH_LM] / "language_model" / "words.arpa", folder)
    _write_nemo(folder / "lm.nemo", 256)
    general = NGramLM.train(texts[300:600], transformers.AutoTokenizer.from_pretrained(repos[CTC]), order=3)
    general.save_pretrained(folder / "general-lm")


def _write_nemo(path: Path, size: int) -> None:
    """A NeMo checkpoint of the uniform model over so many tokens: every arc a loop, a state of <s> without arcs."""
    config = {"num_states": 2, "num_arcs": size, "max_order": 1, "vocab_size": size}
    weights, zeros = torch.full([2 * size], -math.log(size)), torch.zeros(2 * size, dtype=torch.int32)
    state_dict = {
        "arcs_weights": weights, "backoff_weights": torch.zeros(2), "final_weights": weights[:2].clone(),
        "from_states": zeros, "to_states": zeros.clone(), "ilabels": torch.cat([torch.arange(size).int(), zeros[:size]]),
        "backoff_to_states": zeros[:2].clone(), "state_order": torch.tensor([1, 2], dtype=torch.int32),
        "start_end_arcs": torch.tensor([[0, size], [size, size]], dtype=torch.int32),
    }  # fmt: skip
    saved = io.BytesIO()
    torch.save(state_dict, saved)
    with tarfile.open(path, "w") as archive:
        for name, content in (("model_config.yaml", yaml.safe_dump(config).encode()), ("model_weights.ckpt", saved.getvalue())):
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@lru_cache(1)
def _ctc() -> dict[str, Any]:
    """What the decoders' blocks presuppose: models and their outputs, and text."""
    processor = transformers.AutoProcessor.from_pretrained(CTC)
    model = transformers.AutoModelForCTC.from_pretrained(CTC, dtype=torch.float32).eval()
    transducer = transformers.AutoModelForTDT.from_pretrained(TDT).eval()
    clips = [soundfile.read(name, dtype="float32")[0] for name in ("audio.flac", "call.flac", "talk.flac")]
    inputs = processor(clips, sampling_rate=RATE, return_tensors="pt", padding=True)
    with torch.inference_mode():
        logits = model(**inputs).logits
    texts = sentences()
    return {
        "processor": processor, "tokenizer": processor.tokenizer, "ctc_model": model, "model": transducer,
        "inputs": inputs, "logits": logits, "lengths": None, "input_features": inputs["input_features"],
        "attention_mask": inputs["attention_mask"], "texts": texts[:600], "development_texts": texts[600:650],
        "other": NGramLM.train(texts[300:600], tokenizer=processor.tokenizer, order=3),
        "names": ["anna kowalska", "old lighthouse"], "samples": clips[0],
    }  # fmt: skip


@lru_cache(1)
def _whisper() -> dict[str, Any]:
    processor = transformers.AutoProcessor.from_pretrained(WHISPER)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(WHISPER)
    inputs = processor(np.zeros(RATE, dtype=np.float32), sampling_rate=RATE, return_tensors="pt")
    whisper = {"whisper": model, "whisper_processor": processor, "whisper_inputs": inputs}
    return {**whisper, "whisper_lm": NGramLM.from_pretrained(WHISPER_LM)}


def _letters() -> dict[str, Any]:
    """Labels, and outputs for them, `[T, C]`."""
    return {"labels": LABELS, "logits": np.random.default_rng(0).normal(size=(50, len(LABELS)))}


def _recordings() -> dict[str, Any]:
    return {"audio": "audio.flac", "batch_of_audio": ["audio.flac", "call.flac", "talk.flac"]}


def _trainer() -> dict[str, Any]:
    """Recordings with texts, and what makes a batch of them."""
    processor = transformers.AutoProcessor.from_pretrained(CTC)
    lines = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text(encoding="utf-8").splitlines()[:5]]
    spoken = [(soundfile.read(DEMO / line["audio"], dtype="float32")[0], line["text"]) for line in lines]

    def collate(rows: list[tuple[np.ndarray, str]]) -> Any:
        samples, texts = zip(*rows)
        batch = processor(list(samples), sampling_rate=RATE, return_tensors="pt", padding=True)
        labels = [torch.tensor(processor.tokenizer(text)["input_ids"]) for text in texts]
        batch["labels"] = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
        return batch

    return {"spoken": spoken, "collate": collate}


def _chunk() -> dict[str, Any]:
    """Frames of a transducer's encoder, `[T, D]`."""
    return {"chunk": torch.zeros(8, 12)}


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "recordings": _recordings, "letters": _letters, "parakeet": _ctc, "whisper": _whisper, "chunk": _chunk,
    "trainer": _trainer,
}  # fmt: skip
