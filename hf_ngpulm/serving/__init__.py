"""A websocket server: audio of many clients in, transcripts out, all decoded as one batch."""

from .app import make_app
from .limits import Limits

__all__ = ["Limits", "make_app"]
