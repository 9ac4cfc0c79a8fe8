"""Open the transducer search for a strategy and an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...automaton.checks import check_now
from ...engines.choice import engine_module, load_engine
from ...fusion.rows import RowModels
from .buffers import BufferedSearch
from .graphs import Kept, grown, recalled
from .model import TransducerModel
from .search import SearchSettings, TransducerSearch

_ROOM = __name__.rsplit(".", 2)[0]
PACKAGES = {"greedy": f"{_ROOM}.transducer_greedy", "alsd": f"{_ROOM}.transducer_beam", "aes": f"{_ROOM}.transducer_beam"}


def search_kind(settings: SearchSettings, engine: str, device: torch.device) -> Any:
    """Return the class of the search for some settings, engine and device. If the device has no kernels, or the beam is too
    large for the kernels, only the networks run on the device.
    """
    package = PACKAGES[settings.strategy]
    module = load_engine(package, engine, device, elsewhere="cpu")
    if hasattr(module, "holds") and not module.holds(settings):
        module = engine_module(package, "cpu")
    return module.Search


def open_search(
    model: TransducerModel, like: Tensor, size: int, models: RowModels, settings: SearchSettings, engine: str = "auto"
) -> TransducerSearch:
    """Open a search of `size` rows. `model`, `like`, `size`, `models`, `settings`: as for `TransducerSearch`. `engine`: "auto"
    (by device), "reference", "cpu" or "gpu".
    """
    kind = search_kind(settings, engine, like.device)
    if not kind.__module__.endswith(".cpu"):  # the native core checks a mapped model itself
        check_now(models.tensors)
    return kind(model, like, size, models, settings)


@contextmanager
def lent_search(
    model: TransducerModel, frames: Tensor, models: RowModels, settings: SearchSettings, engine: str, kept: Kept | None
) -> Iterator[TransducerSearch]:
    """Lend a search for a batch of frames `[B, T, D]`, as a context manager.

    `kept` is a dictionary of searches with their buffers and CUDA graphs. Pass the same dictionary for the next batch. None
    keeps nothing.
    """
    kind, (size, longest) = search_kind(settings, engine, frames.device), frames.shape[:2]
    if not issubclass(kind, BufferedSearch):
        yield kind(model, frames, size, models, settings)
        return
    rows, room, has_ilm = grown(size, 1), grown(longest, 64), models.ilm_weights is not None
    key = (
        kind, rows, room, models.states.shape[1], models.num_lms, models.vocab_size, settings, has_ilm, frames.shape[2],
        frames.dtype, frames.device, id(model),
    )  # fmt: skip
    weighed = (*(models.tensors if models.states.shape[1] else ()), *model.parameters())
    with recalled(kept, key, weighed, lambda: kind(model, frames, rows, models, settings, room)) as search:
        search.size = size
        yield search
