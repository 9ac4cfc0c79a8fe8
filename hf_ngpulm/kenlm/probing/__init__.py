"""Models that KenLM stores as hash tables (its type `probing`), queried as they are, or listed."""

from .model import ProbingModel
from .tables import ProbingStates

__all__ = ["ProbingModel", "ProbingStates"]
