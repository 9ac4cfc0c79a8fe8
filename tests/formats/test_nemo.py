"""NeMo checkpoints: the same scores as NeMo's own; for broken and hostile files an error that names the fault."""

import gzip
import io
import json
import math
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml

from hf_ngpulm.errors import NGramFormatError
from hf_ngpulm.formats.nemo import read_nemo
from hf_ngpulm.ngrams.table import NGramTable

DATA = Path(__file__).parents[1] / "data" / "nemo"
TINY = DATA / "tiny.nemo"
MISSING = (7, 23, 29)  # tokens that tiny.arpa has no unigram for

StateDict = dict[str, torch.Tensor]


class BackoffScorer:
    """Katz backoff, one n-gram at a time, over a dictionary."""

    def __init__(self, table: NGramTable):
        self.table = table
        self.log_probs: dict[tuple[int, ...], float] = {}
        self.backoffs: dict[tuple[int, ...], float] = {}
        for n, order in enumerate(table.orders, start=1):
            for tokens, log_prob, backoff in zip(
                map(tuple, table.rows(n).tolist()), order.log_probs.tolist(), order.backoffs.tolist()
            ):
                self.log_probs[tokens] = log_prob
                self.backoffs[tokens] = backoff

    def __call__(self, context: tuple[int, ...], token: int) -> float:
        context = context[max(0, len(context) - self.table.order + 1) :]
        if (*context, token) in self.log_probs:
            return self.log_probs[(*context, token)]
        return self.backoffs.get(context, 0.0) + self(context[1:], token)


def read_tiny() -> tuple[dict[str, Any], StateDict]:
    with tarfile.open(TINY) as archive:
        members = {Path(member.name).name: archive.extractfile(member) for member in archive if member.isfile()}
        return yaml.safe_load(members["model_config.yaml"]), torch.load(members["model_weights.ckpt"], weights_only=True)


def pack(members: dict[str, bytes], path: Path, mode: str = "w:") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def save(config: Any, state_dict: Any, path: Path, mode: str = "w:") -> Path:
    weights = io.BytesIO()
    torch.save(state_dict, weights)
    members = {"./model_config.yaml": yaml.safe_dump(config).encode(), "./model_weights.ckpt": weights.getvalue()}
    return pack(members, path, mode)


def unigram_model(vocab_size: int) -> tuple[dict[str, Any], StateDict]:
    """The uniform model that NeMo's `dummy_unigram_lm` makes: every arc a loop, a state of <s> without arcs."""
    config = {"num_states": 2, "num_arcs": vocab_size, "max_order": 1, "vocab_size": vocab_size}
    labels = torch.zeros(2 * vocab_size, dtype=torch.int32)
    labels[:vocab_size] = torch.arange(vocab_size)
    return config, {
        "arcs_weights": torch.full([2 * vocab_size], -math.log(vocab_size)),
        "backoff_weights": torch.zeros(2),
        "final_weights": torch.full([2], -math.log(vocab_size)),
        "from_states": torch.zeros(2 * vocab_size, dtype=torch.int32),
        "to_states": torch.zeros(2 * vocab_size, dtype=torch.int32),
        "ilabels": labels,
        "backoff_to_states": torch.zeros(2, dtype=torch.int32),
        "start_end_arcs": torch.tensor([[0, vocab_size], [vocab_size, vocab_size]], dtype=torch.int32),
        "state_order": torch.tensor([1, 2], dtype=torch.int32),
    }


def arpa_ngrams() -> list[dict[tuple[int, ...], tuple[float, float]]]:
    """tiny.arpa's n-grams per order: tokens -> (log-prob, backoff), natural logs."""
    special = {"<s>": 30, "</s>": 31, "<unk>": 32}
    orders: list[dict[tuple[int, ...], tuple[float, float]]] = []
    for line in gzip.decompress((DATA / "tiny.arpa.gz").read_bytes()).decode().splitlines(keepends=True):
        if line.endswith("-grams:\n"):
            orders.append({})
        elif line.count("\t"):
            log_prob, words, *backoff = line.rstrip("\n").split("\t")
            tokens = tuple(special[word] if word in special else ord(word) - 100 for word in words.split(" "))
            orders[-1][tokens] = float(log_prob) * math.log(10), float(backoff[0] if backoff else 0) * math.log(10)
    return orders


def test_scores_are_those_of_nemo():
    score = BackoffScorer(read_nemo(TINY))
    golden = json.loads(gzip.decompress((DATA / "golden.json.gz").read_bytes()))
    assert len(golden) == 40
    for case in golden:
        context = ((score.table.bos,) if case["bos"] else ()) + tuple(case["tokens"])
        for token in MISSING:  # NeMo forgets all that stood before a token without a unigram; so does a table
            assert score.backoffs[(token,)] == 0.0
        scores = [score(context, token) for token in range(score.table.vocab_size)]
        assert scores == pytest.approx(case["scores"], abs=1e-4), case
        assert score(context, score.table.eos) == pytest.approx(case["final"], abs=1e-4), case


def test_ngrams_are_those_of_the_arpa_file():
    table, arpa = read_nemo(TINY), arpa_ngrams()
    unk = arpa[0].pop((table.unk,))[0]
    for token in MISSING:
        arpa[0][(token,)] = unk - math.log(len(MISSING)), 0.0
    assert table.order == len(arpa) == 4
    for n, order in enumerate(table.orders, start=1):
        expected = arpa[n - 1]
        rows = [tuple(row) for row in table.rows(n).tolist()]
        assert rows == sorted(expected)
        assert order.log_probs.tolist() == pytest.approx([expected[row][0] for row in rows], abs=1e-5)
        assert order.backoffs.tolist() == pytest.approx([expected[row][1] for row in rows], abs=1e-5)
        assert (order.prefixes.dtype, order.tokens.dtype) == (torch.int64, torch.int32)
        assert (order.log_probs.dtype, order.backoffs.dtype) == (torch.float32, torch.float32)


def same_tables(one: NGramTable, other: NGramTable) -> bool:
    columns = ("prefixes", "tokens", "log_probs", "backoffs")
    return one.num_ngrams == other.num_ngrams and all(
        torch.equal(getattr(a, column), getattr(b, column)) for a, b in zip(one.orders, other.orders) for column in columns
    )


def test_gzip_other_index_types_and_the_numbering_of_states_make_no_difference(tmp_path):
    config, state_dict = read_tiny()
    assert same_tables(read_nemo(TINY), read_nemo(save(config, state_dict, tmp_path / "a.nemo", "w:gz")))
    wide = {name: value if value.is_floating_point() else value.long() for name, value in state_dict.items()}
    assert same_tables(read_nemo(TINY), read_nemo(save(config, wide, tmp_path / "b.nemo")))

    swap = torch.arange(config["num_states"])
    swap[2:] = 2 + torch.randperm(len(swap) - 2, generator=torch.Generator().manual_seed(0))
    swapped = dict(state_dict)
    for name in ("from_states", "to_states"):
        swapped[name] = swap[state_dict[name].long()].int()
        swapped[name][config["num_arcs"] :] = 0
    for name in ("backoff_weights", "final_weights", "start_end_arcs", "state_order"):
        swapped[name] = torch.empty_like(state_dict[name]).index_copy_(0, swap, state_dict[name])
    swapped["backoff_to_states"] = torch.empty_like(state_dict["backoff_to_states"]).index_copy_(
        0, swap, swap[state_dict["backoff_to_states"].long()].int()
    )
    assert same_tables(read_nemo(TINY), read_nemo(save(config, swapped, tmp_path / "c.nemo")))


def test_final_weights_that_were_not_resolved(tmp_path):
    config, state_dict = read_tiny()
    final, backoffs = state_dict["final_weights"], state_dict["backoff_weights"]
    backed_off = (final - backoffs - final[state_dict["backoff_to_states"].long()]).abs() < 1e-5
    backed_off[0] = False
    final[backed_off] = -10000.0
    assert int(backed_off.sum()) > 100
    assert same_tables(read_nemo(TINY), read_nemo(save(config, state_dict, tmp_path / "x.nemo")))


def test_unigram_model(tmp_path):
    table = read_nemo(save(*unigram_model(6), tmp_path / "x.nemo"))
    assert table.num_ngrams == (8,)
    assert table.orders[0].tokens.tolist() == list(range(8))  # tokens, <s>, </s>
    assert table.orders[0].log_probs.tolist() == pytest.approx([-math.log(6)] * 6 + [0.0, -math.log(6)])
    assert not table.orders[0].backoffs.any()


def refuse(path: Path, message: str) -> None:
    with pytest.raises(NGramFormatError, match=message) as caught:
        read_nemo(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 600


def put(name: str, index: Any, value: Any) -> Callable[[dict, StateDict], None]:
    def change(config: dict, state_dict: StateDict) -> None:
        state_dict[name][index] = value

    return change


def configure(name: str, value: Any) -> Callable[[dict, StateDict], None]:
    return lambda config, state_dict: config.__setitem__(name, value)


def replace(name: str, value: Any) -> Callable[[dict, StateDict], None]:
    return lambda config, state_dict: state_dict.__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("arcs_weights", 40, math.nan), "arcs_weights has the value nan"),
        (put("backoff_weights", 5, math.inf), "backoff_weights has the value inf"),
        (put("final_weights", 5, -math.inf), "final_weights has the value -inf"),
        (put("arcs_weights", 40, 0.5), "log-probability 0.5, which should be a finite number of at most 0"),
        (put("to_states", 100, 1135), "to_states has the value 1135, it should be from 0 to 1134"),
        (put("to_states", 100, -1), "to_states has the value -1"),
        (put("from_states", 100, 2**30), "from_states has the value 1073741824"),
        (put("ilabels", 100, 30), "ilabels has the value 30, it should be from 0 to 29"),
        (put("ilabels", 2025, -7), "ilabels has the value -7"),  # in the padding
        (put("backoff_to_states", 3, 5000), "backoff_to_states has the value 5000"),
        (put("start_end_arcs", (3, 1), 2000), "start_end_arcs has the value 2000"),
        (put("state_order", 3, 0), "state_order has the value 0"),
        (put("state_order", 3, 99), "state_order has the value 99"),
        (put("state_order", 0, 2), "orders \\(2, 2\\)"),
        (put("state_order", 3, 4), "whose order isn't one more"),
        (put("start_end_arcs", (3, 1), 1), "start_end_arcs and from_states disagree"),
        (put("start_end_arcs", (0, 1), 29), "start_end_arcs and from_states disagree"),
        (put("from_states", 100, 0), "start_end_arcs and from_states disagree"),
        (put("backoff_to_states", 3, 3), "state 3 backs off to state 3"),  # a chain without an end
        (put("backoff_to_states", 1134, 1133), "state 1134 backs off to state 1133"),
        (put("to_states", 1, 2), "state 2 isn't one context: 2 arcs"),
        (put("to_states", 1, 0), "state 3 isn't one context: 0 arcs"),
        (put("to_states", 1, 1), "state 1 isn't one context: 2 arcs"),
        (put("to_states", 1995, 500), "leads from state \\d+ to state 500, which isn't the context"),
        (put("ilabels", 31, 1), "state \\d+ backs off"),
        (put("ilabels", 1, 0), "backs off|the same state with the same token"),
        (configure("vocab_size", 29), "the config implies \\(2025,\\)"),
        (configure("num_states", 1136), "shape \\(1135,\\), but the config implies \\(1136,\\)"),
        (configure("num_arcs", 10**15), "but the config implies \\(1000000000000030,\\)"),
        (configure("num_arcs", -5), "num_arcs in model_config.yaml should be from 1"),
        (configure("num_states", "many"), "num_states in model_config.yaml is not a whole number"),
        (configure("num_states", True), "num_states in model_config.yaml is not a whole number"),
        (configure("max_order", 10**9), "max_order in model_config.yaml should be from 1 to 64"),
        (configure("max_order", 3), "has order 4, more than max_order 3"),
        (configure("max_order", 5), "whose order isn't one more"),
        (configure("separate_bos_state", False), "no state for <s>"),
        (lambda config, state_dict: config.pop("vocab_size"), "vocab_size in model_config.yaml is missing"),
        (lambda config, state_dict: state_dict.pop("to_states"), "no tensor to_states"),
        (replace("to_states", 5), "no tensor to_states"),
        (replace("to_states", torch.zeros(2026)), "of torch.float32, it should be one of torch.int32"),
        (replace("ilabels", torch.zeros(2026, dtype=torch.bool)), "of torch.bool"),
        (replace("ilabels", torch.zeros(1, dtype=torch.int32).expand(2026)), "ilabels has the shape"),
        (replace("ilabels", torch.zeros(2026, dtype=torch.int32).to_sparse()), "torch.sparse_coo tensor"),
        (replace("state_order", torch.ones(1135, 1, dtype=torch.int32)), "state_order has the shape \\(1135, 1\\)"),
    ],
)
def test_broken_models(tmp_path, change, message):
    config, state_dict = read_tiny()
    change(config, state_dict)
    refuse(save(config, state_dict, tmp_path / "x.nemo"), message)


def test_a_final_weight_that_no_table_can_hold(tmp_path):
    config, state_dict = unigram_model(6)
    state_dict["final_weights"][1] = -3.0
    refuse(save(config, state_dict, tmp_path / "x.nemo"), "<s> has a final weight of its own")


def test_every_single_broken_index_is_noticed_or_harmless(tmp_path):
    """Fuzz: one random index anywhere set to a random value in range gives an error or a sound table, never a crash."""
    config, original = read_tiny()
    draw = torch.Generator().manual_seed(1)
    names = ["from_states", "to_states", "ilabels", "backoff_to_states", "start_end_arcs", "state_order"]
    for trial in range(60):
        state_dict = {name: value.clone() for name, value in original.items()}
        flat = state_dict[names[trial % len(names)]].view(-1)
        at = int(torch.randint(flat.numel(), [1], generator=draw))
        flat[at] = int(torch.randint(int(flat.max()) + 1, [1], generator=draw))
        try:
            table = read_nemo(save(config, state_dict, tmp_path / "x.nemo"))
        except NGramFormatError:
            continue
        for n, order in enumerate(table.orders, start=1):
            assert int(order.prefixes.max()) < (len(table.orders[n - 2]) if n > 1 else 1)


class Payload:
    """Runs code when it is unpickled by a reader that allows it."""

    ran: ClassVar[list[str]] = []

    def __reduce__(self):
        return self.ran.append, ("ran",)


def test_code_in_the_weights_is_not_run(tmp_path):
    config, state_dict = read_tiny()
    state_dict["extra"] = Payload()
    refuse(save(config, state_dict, tmp_path / "x.nemo"), "can't be read as plain tensors")
    assert not Payload.ran


def weights_of_tiny() -> bytes:
    with tarfile.open(TINY) as archive:
        content = archive.extractfile("./model_weights.ckpt")
        assert content is not None
        return content.read()


CONFIG = b"{vocab_size: 30, max_order: 4, num_states: 1135, num_arcs: 1996}"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "no model_config.yaml"),
        ({"model_config.yaml": CONFIG}, "no model_weights.ckpt"),
        ({"a/model_config.yaml": CONFIG, "b/model_config.yaml": CONFIG}, "more than one model_config.yaml"),
        ({"model_config.yaml": b"{", "model_weights.ckpt": b""}, "isn't valid YAML"),
        ({"model_config.yaml": b"[" * 100_000, "model_weights.ckpt": b""}, "isn't valid YAML"),
        ({"model_config.yaml": b"!!python/object/apply:os.getcwd []", "model_weights.ckpt": b""}, "isn't valid YAML"),
        ({"model_config.yaml": b"- 1", "model_weights.ckpt": b""}, "holds a list"),
        ({"model_config.yaml": b" " * (1 << 19), "model_weights.ckpt": b""}, "claims 524288 bytes"),
        ({"model_config.yaml": CONFIG, "model_weights.ckpt": b"not a zip"}, "isn't in PyTorch's zip format"),
        ({str(i): b"" for i in range(1500)}, "more than 1000 members"),
    ],
    ids=[
        "empty",
        "no weights",
        "two configs",
        "bad yaml",
        "deep yaml",
        "code in yaml",
        "list",
        "large",
        "no zip",
        "many",
    ],
)
def test_broken_archives(tmp_path, members, message):
    refuse(pack(members, tmp_path / "x.nemo"), message)


def test_member_names_are_not_paths(tmp_path):
    members = {"../../model_config.yaml": CONFIG, "/tmp/../model_weights.ckpt": weights_of_tiny()}
    path = pack(members, tmp_path / "x.nemo")
    assert same_tables(read_nemo(path), read_nemo(TINY))
    assert [file.name for file in tmp_path.iterdir()] == ["x.nemo"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
def test_members_that_are_no_plain_files(tmp_path, kind):
    with tarfile.open(tmp_path / "x.nemo", "w") as archive:
        member = tarfile.TarInfo("model_config.yaml")
        member.type, member.linkname = kind, "elsewhere"
        archive.addfile(member)
    refuse(tmp_path / "x.nemo", "isn't a plain file")


def test_a_sparse_member_of_a_terabyte(tmp_path):
    with tarfile.open(tmp_path / "x.nemo", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("model_weights.ckpt")
        member.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40), "GNU.sparse.numblocks": "1"}
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    refuse(tmp_path / "x.nemo", "isn't a plain file|claims 1099511627776 bytes")


def test_compressed_records(tmp_path):
    weights = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(weights_of_tiny())) as records, zipfile.ZipFile(weights, "w") as deflated:
        for record in records.infolist():
            deflated.writestr(record.filename, records.read(record), zipfile.ZIP_DEFLATED)
    members = {"model_config.yaml": CONFIG, "model_weights.ckpt": weights.getvalue()}
    refuse(pack(members, tmp_path / "x.nemo"), "compressed records")


@pytest.mark.parametrize("state_dict", [[1, 2], torch.zeros(3)], ids=["list", "tensor"])
def test_weights_that_are_no_state_dict(tmp_path, state_dict):
    refuse(save({**yaml.safe_load(CONFIG)}, state_dict, tmp_path / "x.nemo"), "it should hold a state dict")


def test_files_that_are_no_archives(tmp_path):
    path = tmp_path / "x.nemo"
    path.write_bytes(b"")
    refuse(path, "not a NeMo checkpoint|no model_config.yaml")
    path.write_bytes(b"\\data\\\nngram 1=3\n" * 100)
    refuse(path, "not a NeMo checkpoint")
    path.write_bytes(gzip.compress(b"ngram 1=3\n" * 100))
    refuse(path, "not a NeMo checkpoint")
    path.write_bytes(gzip.compress(TINY.read_bytes())[:-100])
    refuse(path, "a broken gzip file")
    with pytest.raises(FileNotFoundError):
        read_nemo(tmp_path / "none.nemo")


@pytest.mark.parametrize("kept", [100, 512, 700, 2000, 40_000, 66_000])
def test_cut_off_files(tmp_path, kept):
    path = tmp_path / "x.nemo"
    path.write_bytes(TINY.read_bytes()[:kept])
    refuse(path, ".")


def test_a_gzip_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_ngpulm.formats.nemo._MIN_GZIP_LIMIT", 1 << 20)
    path = tmp_path / "x.nemo"
    path.write_bytes(gzip.compress(bytes(1 << 24)))
    refuse(path, "unpacks to over \\d+ bytes")
