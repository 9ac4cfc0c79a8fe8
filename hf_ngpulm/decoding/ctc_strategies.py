"""Make the decoder of CTC outputs for a search strategy."""

from __future__ import annotations

from typing import Any

from ..common.checks import check, one_of, refuse_idle
from .ctc import CTCDecoder
from .graph import GraphDecoder
from .options import GraphOptions


def ctc_decoder(tokenizer: Any, strategy: str | None = None, **settings: Any) -> CTCDecoder | GraphDecoder:
    """Return a `CTCDecoder`, or a `GraphDecoder` for `strategy="graph"`.

    Args:
        settings: the decoder's arguments, by the names that pipelines use (`num_beams` for `max_active`, `phrase_weight` for
            `discount`).

    Raises:
        ValueError: the strategy is unknown, or the decoder doesn't have a setting.
    """
    if strategy is None:
        return CTCDecoder(tokenizer, **settings)
    check("strategy", strategy, one_of("graph"))
    ctc_only = {name: settings.pop(name, None) for name in ("repeats", "merge", "source_lm", "source_weight")}
    refuse_idle(ctc_only, "has no meaning in a graph; leave it out, or strategy='graph'")
    own_names = {alias: name for name, alias in GraphOptions.known_as.items()}
    return GraphDecoder(tokenizer, **{own_names.get(name, name): value for name, value in settings.items()})
