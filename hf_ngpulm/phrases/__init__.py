"""Boost phrases with an automaton, which decoders query in addition to the language model's automaton."""

from .arcs import ArcBooster
from .booster import PhraseBooster
from .phrase import Phrase
from .phrases import Booster, Phrases

__all__ = ["ArcBooster", "Booster", "Phrase", "PhraseBooster", "Phrases"]
