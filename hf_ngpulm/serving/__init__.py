"""A server: audio of many clients in, transcripts out, all decoded as one batch; by a websocket and others' protocols."""

from typing import TYPE_CHECKING

from ..common.lazy import attributes_of

if TYPE_CHECKING:
    from .app import make_app
    from .limits import Limits
    from .requests import Voices

__all__ = ["Limits", "Voices", "make_app"]

__getattr__ = attributes_of(__name__, {"Limits": "limits", "Voices": "requests", "make_app": "app"})
