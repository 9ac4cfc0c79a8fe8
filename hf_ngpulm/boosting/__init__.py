"""Phrase boosting: phrases as an automaton that decoders follow beside a language model's."""

from .booster import PhraseBooster, Phrases

__all__ = ["PhraseBooster", "Phrases"]
