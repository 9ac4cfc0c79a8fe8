"""Serve speech recognition by OpenAI's API and the Wyoming protocol. The audio of many clients is decoded in one batch."""

from typing import TYPE_CHECKING

from ..common.lazy import attributes_of

if TYPE_CHECKING:
    from .access import Access
    from .app import make_app
    from .limits import Limits
    from .replicas import deployment
    from .requests import Voices

__all__ = ["Access", "Limits", "Voices", "deployment", "make_app"]

__getattr__ = attributes_of(__name__, __file__)
