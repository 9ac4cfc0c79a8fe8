"""How many kernels the searches launch on a GPU: a count, which needs no GPU.

    python tests/support/launches.py

Searches go on CPU tensors as they do on a GPU, where a step does the same whatever is found. Triton kernels are counted in
place of being run; everything else are PyTorch's operators, which a dispatch mode counts. An operator counts as one launch, an
LSTM as three a layer (two products and the cells); views, and tensors that are only made room for, launch nothing. The networks
are Parakeet's, with random weights; they are in the counts. On a GPU the launches of transducers are replayed as CUDA graphs,
in blocks of several steps.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from hf_ngpulm import NGramLM
from hf_ngpulm.fusion.rows import RowModels, no_models
from hf_ngpulm.search.networks.buffers import STEPS
from hf_ngpulm.search.networks.model import TransducerModel, TransformersTransducer
from hf_ngpulm.search.networks.opening import search_kind
from hf_ngpulm.search.networks.search import SearchSettings

VOCAB_SIZE, WIDTH = 12, 8
BATCH_SIZE, FRAMES = 2, 20
DURATIONS = (0, 1, 2, 3, 4)
# Nothing runs for these, nor for operators that return views of what they are given.
ROOM = {
    f"aten::{name}"
    for name in ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view", "resize_", "set_")
} | {"aten::_local_scalar_dense"}  # a copy to the host
KERNELS_PER_LSTM_LAYER = 3


class Launches(TorchDispatchMode):
    """Counts launches while it is active, by name. Triton kernels are counted in place of being run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return sum(self.names.values())

    def __enter__(self) -> Launches:
        self._launch = JITFunction.run
        JITFunction.run = lambda kernel, *args, **kwargs: self.names.update([kernel.__name__])
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        JITFunction.run = self._launch
        super().__exit__(*raised)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function._schema.name
        if name == "aten::lstm":
            self.names[name] += KERNELS_PER_LSTM_LAYER * args[4]
            return function(*args, **kwargs)
        if name.startswith("hf_ngpulm::"):  # a Triton kernel, counted as such
            return function(*args, **kwargs)
        # Operators that are made of others are counted as those.
        if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd"):
            with self:
                return function.decompose(*args, **kwargs)
        result = function(*args, **kwargs)
        if name not in ROOM and not _is_view(function) and _has_elements(result):
            self.names[name] += 1
        return result


def _is_view(function: Any) -> bool:
    return any(part.alias_info is not None and not part.alias_info.is_write for part in function._schema.returns)


def _has_elements(result: Any) -> bool:
    parts = result if isinstance(result, (tuple, list)) else [result]
    return any(part.numel() > 0 for part in parts if isinstance(part, Tensor))


class Row(NamedTuple):
    """A line of the table: what is counted, in what unit, at most how many there should be, and how they are counted."""

    name: str
    unit: str
    goal: int
    count: Callable[[], float]


def parakeet(durations: tuple[int, ...] | None = None) -> TransducerModel:
    """Return Parakeet's prediction and joint networks, tiny and with random weights."""
    import transformers

    kind, extra = ("RNNT", {}) if durations is None else ("TDT", {"durations": list(durations)})
    family = getattr(transformers, f"ParakeetFor{kind}")
    encoder = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "num_mel_bins": 8}
    config = family.config_class(
        encoder_config=encoder, vocab_size=VOCAB_SIZE + 1, blank_token_id=VOCAB_SIZE, pad_token_id=0, decoder_hidden_size=WIDTH,
        num_decoder_layers=1, **extra,
    )  # fmt: skip
    torch.manual_seed(0)
    return TransformersTransducer(family(config).eval())


def language_model() -> NGramLM:
    generator = torch.Generator().manual_seed(0)
    return NGramLM.train(torch.randint(0, VOCAB_SIZE, (40, 6), generator=generator).tolist(), vocab_size=VOCAB_SIZE, order=3)


def models_of(lm: NGramLM | None) -> RowModels:
    """Return what the rows of a batch are fused with: a language model, with an internal one subtracted, or nothing."""
    models = no_models(BATCH_SIZE, torch.device("cpu"))
    if lm is None:
        return models
    states, weights = lm.starts[:1].expand(BATCH_SIZE)[:, None].contiguous(), torch.full((BATCH_SIZE, 1), 0.5)
    present = torch.ones_like(weights, dtype=torch.bool)
    return RowModels(lm.tensors, lm.vocab_size, states, weights, present, 1, ilm_weights=torch.full((BATCH_SIZE,), 0.5))


@torch.no_grad()
def in_search(settings: SearchSettings, durations: tuple[int, ...] | None, lm: NGramLM | None) -> float:
    """Return launches a step: of label looping, which ends with a label (or with a window of blanks), or ALSD; or a frame of
    AES."""
    frames, models, rows = torch.randn(BATCH_SIZE, FRAMES, WIDTH), models_of(lm), np.arange(BATCH_SIZE)
    search = search_kind(settings, "gpu", frames.device)(parakeet(durations), frames, BATCH_SIZE, models, settings)
    search.begin(rows, models)
    search.frames = frames
    search.limit(torch.full((BATCH_SIZE,), FRAMES), torch.zeros(BATCH_SIZE, dtype=torch.int64))
    with Launches() as launches:
        search.block()
    return launches.total / STEPS


def in_greedy_search(durations: tuple[int, ...] | None, lm: NGramLM | None, confidence: str | None = None) -> float:
    """Return launches a step of label looping."""
    return in_search(SearchSettings(1, "greedy", confidence=confidence), durations, lm)


def in_beam_search(strategy: str, durations: tuple[int, ...] | None, num_beams: int, lm: NGramLM | None) -> float:
    """Return launches a step of ALSD, or a frame of AES."""
    return in_search(SearchSettings(num_beams, strategy), durations, lm)


def rows() -> list[Row]:
    lm = language_model()
    return [
        Row("greedy RNN-T", "step", 30, lambda: in_greedy_search(None, None)),
        Row("greedy RNN-T + LM", "step", 32, lambda: in_greedy_search(None, lm)),
        Row("greedy TDT", "step", 30, lambda: in_greedy_search(DURATIONS, None)),
        Row("greedy TDT + LM", "step", 32, lambda: in_greedy_search(DURATIONS, lm)),
        Row("ALSD++ 6 RNN-T", "step", 45, lambda: in_beam_search("alsd", None, 6, None)),
        Row("ALSD++ 6 RNN-T + LM", "step", 45, lambda: in_beam_search("alsd", None, 6, lm)),
        Row("ALSD++ 6 TDT", "step", 45, lambda: in_beam_search("alsd", DURATIONS, 6, None)),
        Row("ALSD++ 6 TDT + LM", "step", 45, lambda: in_beam_search("alsd", DURATIONS, 6, lm)),
        Row("AES++ 6 RNN-T + LM", "frame", 120, lambda: in_beam_search("aes", None, 6, lm)),
    ]


def main() -> None:
    sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import measure

    args = measure.arguments(__doc__, "launches").parse_args()
    found = [{"search": row.name, "unit": row.unit, "launches": row.count(), "goal": row.goal} for row in rows()]
    print(measure.table(found))
    print("results in", measure.save(args.name, {"rows": found}, args.out))


if __name__ == "__main__":
    main()
