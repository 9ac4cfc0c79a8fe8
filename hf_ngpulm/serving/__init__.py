"""A server that decodes the audio of many clients in one batch, with OpenAI's API and the Wyoming protocol."""

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
