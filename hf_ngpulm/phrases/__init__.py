"""Phrase boosting: phrases as an automaton that decoders follow beside a language model's."""

from .arcs import ArcBooster
from .booster import PhraseBooster
from .phrases import Booster, Phrases

__all__ = ["ArcBooster", "Booster", "PhraseBooster", "Phrases"]
