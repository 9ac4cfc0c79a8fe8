"""Read NeMo's NGPU-LM checkpoints (`NGramGPULanguageModel.save_to("lm.nemo")`).

A ``.nemo`` file is a tar archive of ``model_config.yaml`` and ``model_weights.ckpt``. Older versions compress it with gzip. The
weights are the automaton of Bataev et al., "NGPU-LM" (arXiv 2505.22857):

* State 0 is the empty context, and state 1 is the context `<s>`. To every other state, exactly one arc leads from a state with
  a context that is one token shorter.
* No state has the whole n-gram of an arc of the highest order as its context. So such an arc leads to the state of the n-gram
  without its first token.
* `final_weights` is log p(`</s>` | state), including backoffs.
* All weights are natural logarithms.

The reader doesn't trust the file. It writes no member to disk, unpickles only with ``torch.load(weights_only=True)``, limits
unpacked sizes, and checks every tensor before the tensor is used as an index.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
import yaml
from torch import Tensor

from ..common.files import naming, read_unpacked
from ..errors import NGramFormatError
from ..ngrams.table import MAX_ORDER, NGramTable

_CONFIG = "model_config.yaml"
_WEIGHTS = "model_weights.ckpt"
_ROOT, _BOS_STATE = 0, 1
_NO_FINAL = -10000.0  # NeMo's "minus infinity": the state has no own final weight
_WEIGHT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INDEX_TYPES = (torch.int32, torch.int64)

# Limits that stop small hostile files.
_MAX_CONFIG_BYTES = 1 << 18
_MAX_MEMBERS = 1000
_MAX_GZIP_RATIO, _MIN_GZIP_LIMIT = 64, 1 << 28


def read_nemo(path: str | os.PathLike[str]) -> NGramTable:
    """Read the n-grams of a NeMo NGPU-LM checkpoint.

    The table has the checkpoint's probabilities in every context. The checkpoint lacks some values of the ARPA file. So `<s>`
    gets log-probability 0 as in lmplz (no query reads this value), and there is no `<unk>`. If the ARPA file had no unigram for
    a token, NeMo gave the token a share of `<unk>`; here the token gets a unigram with this share.

    Args:
        path: a ``.nemo`` file.

    Raises:
        NGramFormatError: the file isn't an NGPU-LM checkpoint, or is damaged. The message names the wrong value.
        OSError: the file can't be opened.
    """
    with open(path, "rb") as file, naming(path):
        config, weights = _read_members(file)
        return _table(_read_config(config), _read_state_dict(weights))


# From the automaton to n-grams


def _table(config: dict[str, int], state_dict: Mapping[str, Any]) -> NGramTable:
    vocab_size, max_order = config["vocab_size"], config["max_order"]
    tensors = _check_tensors(config, state_dict)
    # Only the first `num_arcs` rows are arcs; the other rows are padding for NeMo's kernel.
    arc_from, arc_to, arc_token = (tensors[name][: config["num_arcs"]] for name in ("from_states", "to_states", "ilabels"))
    arc_weights = tensors["arcs_weights"][: config["num_arcs"]]
    backoff_to, backoffs = tensors["backoff_to_states"], tensors["backoff_weights"]
    context_length = tensors["state_order"] - 1
    arc_order = context_length[arc_from] + 1
    _check_arcs(tensors["start_end_arcs"], arc_from, arc_order, vocab_size, max_order)
    _check_contexts(context_length, backoff_to, arc_from, arc_to, arc_token, max_order)

    # If a state's final weight differs from the backed-off score, the state has an n-gram for </s>. (NeMo computed the sum in
    # float32 and may have rounded it differently; the weight of an n-gram differs by more.)
    final = tensors["final_weights"]
    resolved = backoffs + final[backoff_to]
    own_final = (final > _NO_FINAL) & ((final - resolved).abs() > 4e-6 * resolved.abs().clamp(min=1.0))
    own_final[_ROOT] = True  # the unigram </s>
    if int(context_length[own_final].max()) >= max_order:
        raise NGramFormatError(
            f"<s> has a final weight of its own, {float(final[_BOS_STATE]):g}, in a model of order {max_order}"
        )

    # N-grams of each order: the arcs that leave its contexts, and the ends of texts.
    rows = []
    row_of_state = torch.zeros_like(backoff_to)
    before = torch.zeros((1, 0), dtype=torch.int64)
    for n in range(1, max_order + 1):
        arcs = torch.nonzero(arc_order == n)[:, 0]
        ends = torch.nonzero(own_final & (context_length == n - 1))[:, 0]
        # The state for each n-gram as a context. It is 0 for n-grams that aren't contexts: n-grams with </s>, tokens without a
        # unigram, and n-grams of the highest order.
        contexts = torch.cat([arc_to[arcs] if n < max_order else torch.zeros_like(arcs), torch.zeros_like(ends)])
        sources = torch.cat([arc_from[arcs], ends])
        last = torch.cat([arc_token[arcs], torch.full_like(ends, vocab_size + 1)])
        log_probs = torch.cat([arc_weights[arcs], final[ends]])
        if n == 1:  # <s>
            contexts, sources, last, log_probs = (
                torch.cat([values, values.new_tensor([more])])
                for values, more in ((contexts, _BOS_STATE), (sources, _ROOT), (last, vocab_size), (log_probs, 0.0))
            )
        tokens = torch.cat([before[row_of_state[sources]], last[:, None]], 1)
        rows.append((tokens, log_probs, torch.where(contexts == _ROOT, 0.0, backoffs[contexts])))
        row_of_state[contexts] = torch.arange(contexts.numel())
        row_of_state[_ROOT], before = 0, tokens
    return NGramTable.from_rows(vocab_size, rows)


def _check_arcs(bounds: Tensor, arc_from: Tensor, arc_order: Tensor, vocab_size: int, max_order: int) -> None:
    """Check that `start_end_arcs` gives each state exactly its own arcs, and that the root has an arc for every token."""
    num_arcs = arc_from.numel()
    start, end = bounds.unbind(dim=1)
    index = torch.arange(num_arcs)
    # If every arc is inside its state's range, and the sum of the ranges' lengths is the number of arcs, each arc is in exactly
    # one range.
    inside = (start[arc_from] <= index) & (index < end[arc_from])
    if bool((start > end).any()) or int((end - start).sum()) != num_arcs or not bool(inside.all()):
        raise NGramFormatError(f"start_end_arcs and from_states disagree about the source of some of the {num_arcs} arcs")
    if int(arc_order.max()) > max_order:
        raise NGramFormatError(f"an arc has order {int(arc_order.max())}, more than max_order {max_order}")
    if int(end[_ROOT] - start[_ROOT]) != vocab_size:
        raise NGramFormatError(
            f"the start state has {int(end[_ROOT] - start[_ROOT])} arcs, it should have one for each of the {vocab_size} tokens"
        )


def _check_contexts(
    context_length: Tensor, backoff_to: Tensor, arc_from: Tensor, arc_to: Tensor, arc_token: Tensor, max_order: int
) -> None:
    """Check that each state is one context, and that its backoff arc drops the context's first token. Also check that each arc
    leads to the state with the longest possible context.
    """
    num_states = context_length.numel()
    if int(context_length[_ROOT]) != 0 or int(context_length[_BOS_STATE]) != 1:
        orders = int(context_length[_ROOT]) + 1, int(context_length[_BOS_STATE]) + 1
        raise NGramFormatError(f"the start state and the state of <s> have orders {orders}, they should have (1, 2)")

    # Arcs that extend a context form a tree over the states: one arc leads into each state except the first two.
    top = context_length[arc_from] == max_order - 1
    no_unigram = ~top & (arc_from == _ROOT) & (arc_to == _ROOT)
    grows = ~top & ~no_unigram
    parents, children = arc_from[grows], arc_to[grows]
    wrong = context_length[children] != context_length[parents] + 1
    if bool(wrong.any()):
        raise NGramFormatError(
            f"an arc leads from state {int(parents[wrong][0])} to state {int(children[wrong][0])}, "
            "whose order isn't one more: this isn't an n-gram model"
        )
    arcs_into = torch.bincount(children, minlength=num_states)
    arcs_into[:2] += 1
    if bool((arcs_into != 1).any()):
        state = int(torch.nonzero(arcs_into != 1)[0, 0])
        raise NGramFormatError(
            f"state {state} isn't one context: {int(arcs_into[state])} arcs lead to it from the order below, not one"
        )
    parent = torch.full_like(backoff_to, -1)
    label = torch.full_like(backoff_to, -1)
    parent[children] = parents
    label[children] = arc_token[grows]

    # The suffix of a longer context is the suffix of its parent, extended by the context's last token.
    is_suffix = (parent[backoff_to] == backoff_to[parent]) & (label[backoff_to] == label)
    is_suffix = torch.where(context_length > 1, is_suffix, backoff_to == _ROOT)
    if not bool(is_suffix.all()):
        state = int(torch.nonzero(~is_suffix)[0, 0])
        raise NGramFormatError(
            f"state {state} backs off to state {int(backoff_to[state])}, which isn't the same context without its first token"
        )
    source, target = arc_from[top], arc_to[top]
    follows = (parent[target] == backoff_to[source]) & (label[target] == arc_token[top])
    wrong = ~follows if max_order > 1 else target != _ROOT
    if bool(wrong.any()):
        raise NGramFormatError(
            f"an arc of the highest order leads from state {int(source[wrong][0])} to state {int(target[wrong][0])}, "
            "which isn't the context of the n-gram's last tokens"
        )


# Reading the archive


def _read_members(file: BinaryIO) -> tuple[bytes, bytes]:
    """Return the contents of two members of the archive: config and weights. Folders in the members' names are ignored."""
    size = os.fstat(file.fileno()).st_size
    if file.read(2) == b"\x1f\x8b":
        file.seek(0)
        file = _gunzip(file, limit=max(_MAX_GZIP_RATIO * size, _MIN_GZIP_LIMIT))
        size = file.seek(0, io.SEEK_END)
    file.seek(0)
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for count, member in enumerate(archive):
                if count == _MAX_MEMBERS:
                    raise NGramFormatError(f"the archive has more than {_MAX_MEMBERS} members, a NeMo model has few")
                name = member.name.rsplit("/", 1)[-1]
                if name not in (_CONFIG, _WEIGHTS):
                    continue
                limit = _MAX_CONFIG_BYTES if name == _CONFIG else size
                if name in contents:
                    raise NGramFormatError(f"the archive has more than one {name}")
                # A sparse member can claim any size, because its holes take no room in the archive.
                if not member.isreg() or member.issparse():
                    raise NGramFormatError(f"{name} in the archive isn't a plain file")
                if member.size > limit:
                    raise NGramFormatError(f"{name} claims {member.size} bytes, at most {limit} are possible")
                content = archive.extractfile(member)
                assert content is not None  # since it is a regular file
                contents[name] = content.read()
    except NGramFormatError:
        raise
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        raise NGramFormatError(f"not a NeMo checkpoint, which is a tar archive ({_first_line(error)})") from error
    for name in (_CONFIG, _WEIGHTS):
        if name not in contents:
            raise NGramFormatError(f"the archive has no {name}: not a NeMo checkpoint")
    return contents[_CONFIG], contents[_WEIGHTS]


def _gunzip(file: BinaryIO, limit: int) -> io.BytesIO:
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            return io.BytesIO(read_unpacked(stream, limit))
    except (OSError, EOFError, zlib.error) as error:
        raise NGramFormatError(f"a broken gzip file ({_first_line(error)})") from error


def _read_config(content: bytes) -> dict[str, int]:
    """Return the sizes in `model_config.yaml`."""
    try:
        config = yaml.safe_load(content)
    except Exception as error:  # yaml raises a dozen other errors too: recursion, overflows, bad dates
        raise NGramFormatError(f"{_CONFIG} isn't valid YAML ({_first_line(error)})") from error
    if not isinstance(config, dict):
        raise NGramFormatError(f"{_CONFIG} holds a {type(config).__name__}, it should hold a mapping")
    if config.get("separate_bos_state", True) is not True:
        raise NGramFormatError(
            "the model has no state for <s> (separate_bos_state isn't true): a phrase-boosting tree rather than a "
            "language model. Build a PhraseBooster from its phrases"
        )
    sizes = {}
    for name, least, most in (
        ("vocab_size", 1, 2**31 - 4),
        ("max_order", 1, MAX_ORDER),
        ("num_states", 2, 2**62),
        ("num_arcs", 1, 2**62),
    ):
        value = config.get(name)
        if type(value) is not int:  # `bool` is a subclass of `int`
            raise NGramFormatError(f"{name} in {_CONFIG} is {'missing' if value is None else 'not a whole number'}")
        if not least <= value <= most:
            raise NGramFormatError(f"{name} in {_CONFIG} should be from {least} to {most}, it is {value:.6g}")
        sizes[name] = value
    return sizes


def _read_state_dict(content: bytes) -> Mapping[str, Any]:
    stream = io.BytesIO(content)
    try:
        if not zipfile.is_zipfile(stream):
            raise NGramFormatError(f"{_WEIGHTS} isn't in PyTorch's zip format")
        with zipfile.ZipFile(stream) as records:
            if any(record.compress_type != zipfile.ZIP_STORED for record in records.infolist()):
                raise NGramFormatError(f"{_WEIGHTS} has compressed records; PyTorch writes none")
        stream.seek(0)
        state_dict = torch.load(stream, weights_only=True, map_location="cpu")
    except NGramFormatError:
        raise
    except Exception as error:  # a hostile pickle can make the reader raise anything
        raise NGramFormatError(f"{_WEIGHTS} can't be read as plain tensors ({_first_line(error)})") from error
    if not isinstance(state_dict, Mapping):
        raise NGramFormatError(f"{_WEIGHTS} holds a {type(state_dict).__name__}, it should hold a state dict")
    return state_dict


def _check_tensors(config: dict[str, int], state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
    """Check the shapes and values of the model's tensors, and return the tensors.

    Weights must be finite; they become float32. Indices must be in range; they become int64.
    """
    states, arcs, padded = config["num_states"], config["num_arcs"], config["num_arcs"] + config["vocab_size"]
    tensors = {}
    for name, shape, bounds in (
        ("arcs_weights", (padded,), None),
        ("backoff_weights", (states,), None),
        ("final_weights", (states,), None),
        ("from_states", (padded,), (0, states - 1)),
        ("to_states", (padded,), (0, states - 1)),
        ("ilabels", (padded,), (0, config["vocab_size"] - 1)),
        ("backoff_to_states", (states,), (0, states - 1)),
        ("start_end_arcs", (states, 2), (0, arcs)),
        ("state_order", (states,), (1, MAX_ORDER + 1)),
    ):
        tensor = _plain_tensor(state_dict, name, shape, _INDEX_TYPES if bounds else _WEIGHT_TYPES)
        tensor = tensor.to(torch.int64 if bounds else torch.float32)
        wrong = (tensor < bounds[0]) | (tensor > bounds[1]) if bounds else ~torch.isfinite(tensor)
        if bool(wrong.any()):
            right = f"it should be from {bounds[0]} to {bounds[1]}" if bounds else "all should be finite"
            raise NGramFormatError(f"{name} has the value {tensor[wrong][0].item()}, {right}")
        tensors[name] = tensor
    return tensors


def _plain_tensor(state_dict: Mapping[str, Any], name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> Tensor:
    tensor = state_dict.get(name)
    if not isinstance(tensor, Tensor):
        raise NGramFormatError(f"{_WEIGHTS} has no tensor {name}")
    if tensor.dtype not in dtypes or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise NGramFormatError(f"{name} is a {tensor.layout} tensor of {tensor.dtype}, it should be one of {dtypes[0]}")
    # A view can claim any size, so its size is compared with its storage.
    if tuple(tensor.shape) != shape or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise NGramFormatError(f"{name} has the shape {tuple(tensor.shape)}, but the config implies {shape}")
    return tensor.detach().contiguous()


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:200]
