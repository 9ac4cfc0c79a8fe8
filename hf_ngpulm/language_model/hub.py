"""Read and write the files of a saved language model and its model card, in a folder or on the Hub."""

from __future__ import annotations

import hashlib
import json
import os
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

from ..automaton import LMParts
from ..common.bundled import bundled
from ..common.files import naming, standing_at, write_together
from ..errors import NGramFormatError
from ..formats.safetensors import (
    CONFIG_FILE,
    DIGEST,
    INDEX_FILE,
    SHARD,
    WEIGHTS_FILE,
    config_digest,
    save_tensors,
    shards_of,
    tensors_of,
)

CARD_FILE = "README.md"
TAGS = ("n-gram", "language-model", "automatic-speech-recognition", "ngpu-lm")
# Audio samples that the Hub offers for English recognisers.
SAMPLES = "https://cdn-media.huggingface.co/speech_samples"


def saved_files(name: str, subfolder: str | None, **hub: Any) -> tuple[Path, Path, str]:
    """Return the paths of a model's config and weights, and the model's name for messages. Files on the Hub are downloaded.

    Args:
        hub: further arguments of `hf_hub_download`.

    Raises:
        NGramFormatError: the folder or repo lacks the config or the weights.
        FileNotFoundError: there is no such folder or repo, or the repo can't be reached.
    """
    where = "/".join(filter(None, (name, subfolder)))

    def found(file: str) -> Path | None:
        if os.path.isdir(name):
            path = standing_at(Path(name, subfolder or "", file))
            return path if path.is_file() else None
        try:
            return Path(hf_hub_download(name, file, subfolder=subfolder, library_name="hf_ngpulm", **hub))
        except HFValidationError:
            raise FileNotFoundError(f"{name} is neither a folder nor the id of a Hub repo (organisation/name)") from None
        except LocalEntryNotFoundError as error:
            if file == WEIGHTS_FILE:  # the cache may have an index
                return None
            raise LocalEntryNotFoundError(
                f"{where}: there is no folder of this name, and no such repo in the cache; the Hub can't be reached, or "
                "mustn't be (local_files_only, HF_HUB_OFFLINE)"
            ) from error
        except EntryNotFoundError:
            return None

    config = found(CONFIG_FILE)
    weights = found(WEIGHTS_FILE) if config is not None else None  # one file, or an index of several files
    if config is not None and (weights is None or os.path.isdir(name)):
        # A save that was killed leaves both kinds behind; the newer one belongs to the config.
        both = [path for path in (weights, found(INDEX_FILE)) if path is not None]
        weights = max(both, key=lambda path: path.stat().st_mtime_ns, default=None)
    with naming(where):
        missing = [CONFIG_FILE] * (config is None) or [WEIGHTS_FILE] * (weights is None)
        if weights is not None:
            missing = [shard for shard in shards_of(weights) if found(shard) is None]
    if missing:
        kind, place = ("a saved", "it") if os.path.isdir(name) else ("an", "the repo")
        raise NGramFormatError(f"{where} isn't {kind} n-gram language model: {place} has no {missing[0]}")
    assert config is not None and weights is not None
    return config, weights, where


def save(parts: LMParts, folder: Path, card: str | None) -> None:
    """Write all files of a model to a folder. If an error occurs, write no file. `card`: the model card's text; None keeps an
    existing card.
    """
    tensors = tensors_of(parts)
    config = json.dumps(parts.config.to_dict(), indent=2) + "\n"
    metadata = {"format": "pt", DIGEST: config_digest(json.loads(config))}
    if parts.pieces is not None:
        metadata["pieces"] = json.dumps(parts.pieces)
    with write_together(folder) as files:
        for name, text in ((CARD_FILE, card), (CONFIG_FILE, config)):
            if text is not None:
                (files / name).write_text(text, encoding="utf-8")
        save_tensors(files, tensors, metadata, folder)
        written = set(os.listdir(files))
    for path in folder.glob("model*.safetensors*"):  # of an older model of another size
        if path.name not in written and (path.name in (WEIGHTS_FILE, INDEX_FILE) or SHARD.fullmatch(path.name)):
            path.unlink()


def card_metadata(
    parts: LMParts, datasets: Sequence[str] = (), language: Sequence[str] = (), license: str | None = None
) -> ModelCardData:
    """Return the metadata of a model card. With it, the Hub finds the model and shows its use. See `NGramLM.model_card`."""
    training, decoding = parts.config.training, parts.config.decoding
    metrics = ["perplexity"] if training is not None and training.perplexity_per_token is not None else []
    metrics += sorted({str(tuned.measured["by"]) for tuned in decoding if tuned.measured.get("by") in ("wer", "cer")})
    widget = [{"example_title": f"LibriSpeech {number}", "src": f"{SAMPLES}/sample{number}.flac"} for number in (1, 2)]
    return ModelCardData(
        library_name="hf_ngpulm",
        pipeline_tag="automatic-speech-recognition",
        tags=list(TAGS),
        language=_listed(language),
        license=license,
        datasets=_listed(datasets),
        metrics=metrics or None,
        widget=widget if {"en", "english"} & {name.lower() for name in _listed(language) or ()} else None,
    )


def _listed(names: str | Sequence[str]) -> list[str] | None:
    return ([names] if isinstance(names, str) else list(names)) or None


def model_card(
    parts: LMParts,
    repo_id: str,
    asr_model: str | None,
    datasets: Sequence[str] = (),
    language: Sequence[str] = (),
    license: str | None = None,
) -> str:
    """Return a model card that describes the model. For the arguments see `NGramLM.model_card`."""
    config, automaton = parts.config, parts.automaton
    total, nbytes = sum(config.num_ngrams), automaton.nbytes + parts.unk_tokens.nbytes
    counts = ", ".join(f"{count:,}" for count in config.num_ngrams)
    missing = {"share": "they share the probability of `<unk>`", "unk": "each has the probability of `<unk>`"}
    score = missing.get(str(config.missing_unigrams), f"each has the log-probability {config.missing_unigrams}")
    template = string.Template(bundled("model_cards/ngram_lm.md").read_text(encoding="utf-8"))
    text = template.substitute(
        metadata=card_metadata(parts, datasets, language, license).to_yaml(),
        title=repo_id.rsplit("/", 1)[-1],
        repo_id=repo_id,
        asr_model=asr_model or config.tokenizer_id or "org/asr-model",
        order=config.order,
        tokenizer=f"`{config.tokenizer_id}`" if config.tokenizer_id else "not known: built from bare token ids",
        fingerprint=config.tokenizer_fingerprint or "none",
        vocab_size=f"{config.vocab_size:,}",
        num_ngrams=f"{total:,} of {config.unit}s ({counts} of orders 1 and up)",
        num_states=f"{automaton.num_states:,}",
        num_arcs=f"{automaton.num_arcs:,}",
        nbytes=f"{nbytes:,}",
        bytes_per_ngram=f"{nbytes / total:.1f}",
        num_missing=f"{parts.unk_tokens.numel():,}",
        missing_unigrams="they occur in unknown words only" if config.words else score,
        unit=config.unit,
        training="".join(f"| {name} | {value} |\n" for name, value in config.lines()),
    )
    return f"{text}\n{_seal(text)}\n"


def is_as_written(card: str) -> bool:
    """Return whether `model_card` wrote this card, for any model, and nobody has edited the card since."""
    text, _, seal = card.rstrip("\n").rpartition("\n")
    return _seal(text) == seal


def _seal(text: str) -> str:
    """Return a comment with a digest of the card. The digest reveals later edits."""
    return f"<!-- hf_ngpulm {hashlib.sha256(text.encode()).hexdigest()[:16]} -->"
