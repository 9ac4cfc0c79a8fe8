"""A server: audio of many clients in, transcripts out, all decoded as one batch; by a websocket and others' protocols."""

from .app import make_app
from .limits import Limits
from .requests import Voices

__all__ = ["Limits", "Voices", "make_app"]
