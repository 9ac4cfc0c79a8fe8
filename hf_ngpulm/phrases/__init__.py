"""Boost phrases with an automaton that decoders follow beside the language model's automaton."""

from .arcs import ArcBooster
from .booster import PhraseBooster
from .phrases import Booster, Phrases

__all__ = ["ArcBooster", "Booster", "PhraseBooster", "Phrases"]
