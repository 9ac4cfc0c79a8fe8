import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

from hf_ngpulm.compat import build_ctcdecoder

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def golden():
    """What pyctcdecode made of some outputs, see tests/data/pyctcdecode/make_data.py."""
    folder = DATA / "pyctcdecode"
    found = SimpleNamespace(**json.loads(gzip.decompress((folder / "golden.json.gz").read_bytes())))
    with np.load(folder / "logits.npz") as saved:
        found.logits = {name: saved[name].astype(np.float32) for name in saved.files}
    return found


@pytest.fixture(scope="session")
def arpas(tmp_path_factory):
    """The words of 90 sentences, orders 2 and 3."""
    folder = tmp_path_factory.mktemp("kenlm")
    for name in ("o2", "o3"):
        (folder / f"{name}.arpa").write_bytes(gzip.decompress((DATA / "kenlm" / f"{name}.arpa.gz").read_bytes()))
    return {name: folder / f"{name}.arpa" for name in ("o2", "o3")}


@pytest.fixture(scope="session")
def words_arpa(arpas):
    return Path(shutil.copy(arpas["o3"], arpas["o3"].with_name("words.arpa")))


@pytest.fixture(scope="session")
def labels(golden):
    return golden.labels["letters"]


@pytest.fixture(scope="session")
def outputs(golden):
    """Logits `[T, C]` of six sentences; those of the even ones are clear."""
    return [golden.logits[f"letters_{row}"] for row in range(len(golden.sentences))]


@pytest.fixture(scope="module")
def decoder(labels, words_arpa):
    return build_ctcdecoder(labels, words_arpa)


@pytest.fixture(scope="session")
def tokenizer(labels, tmp_path_factory):
    """The same labels as those of a wav2vec2."""
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.json"
    special = {"": "<pad>", " ": "|"}
    path.write_text(json.dumps({special.get(label, label): token for token, label in enumerate(labels)}))
    return Wav2Vec2CTCTokenizer(str(path), unk_token="<pad>", bos_token=None, eos_token=None)


@pytest.fixture(scope="session")
def recogniser(labels, tokenizer):
    """A wav2vec2 with random weights, as parts of a pipeline."""
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=len(labels), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        conv_dim=(8, 8), conv_kernel=(16, 20), conv_stride=(16, 20), num_feat_extract_layers=2, num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2, pad_token_id=0,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config).eval()
    with torch.no_grad():  # so that it says something
        model.lm_head.weight.mul_(40)
    return {"model": model, "tokenizer": tokenizer, "feature_extractor": Wav2Vec2FeatureExtractor()}
