"""How decoders search: one description for the decoder, `generate` and models, checked in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..common.arguments import check_number, one_of, refuse_idle, whole
from ..search.networks.model import TransducerModel
from ..search.transducer_beam import BeamSettings

STRATEGIES = ("greedy", "alsd", "aes")
MOST_BEAMS = 1024
NUM_BEAMS = 4


@dataclass(frozen=True)
class TransducerOptions:
    """How a transducer is searched; `hf_ngpulm.TransducerDecoder` explains each.

    None leaves a setting to what the language model remembers for the model, or else to its default.
    """

    strategy: str | None = None
    num_beams: int | None = None
    num_return_sequences: int = 1
    max_symbols: int | None = None
    ilm_weight: float | None = None
    blank_scoring: str | None = None
    pruning: str | None = None
    merging: str | None = None
    length_normalization: bool | None = None
    score_eos: bool | None = None
    aes_steps: int | None = None
    aes_beta: int | None = None
    aes_gamma: float | None = None

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all settings."""
        return [field.name for field in fields(cls)]

    def settings(self, model: TransducerModel) -> BeamSettings:
        """Return what the search takes, checked.

        Raises:
            ValueError: a setting out of range, or one that the strategy doesn't have.
        """
        strategy, num_beams = self.strategy, self.num_beams
        if strategy is None:
            strategy = "greedy" if num_beams in (None, 1) else "alsd"
        one_of("strategy", strategy, STRATEGIES)
        of_aes = {name: getattr(self, name) for name in ("aes_steps", "aes_beta", "aes_gamma")}
        if strategy == "greedy":
            of_beams = ("blank_scoring", "pruning", "merging", "length_normalization", "score_eos")
            idle = {"num_beams": None if num_beams == 1 else num_beams, **{name: getattr(self, name) for name in of_beams}}
            refuse_idle(idle | of_aes, 'without a beam search to act on: pass strategy="alsd" too')
            num_beams = 1
        if strategy == "alsd":
            refuse_idle(of_aes, 'without strategy="aes" to act on')
        if strategy == "aes" and model.durations is not None:
            raise ValueError('strategy="aes" goes frame by frame, but a TDT model skips frames; use strategy="alsd"')
        if self.aes_gamma is not None and not self.aes_gamma > 0:
            raise ValueError(f"aes_gamma should be above 0, got {self.aes_gamma!r}")
        blank_scoring, pruning, merging = self.blank_scoring or "lm_weighted", self.pruning or "late", self.merging or "log_sum"
        return BeamSettings(
            num_beams=whole("num_beams", NUM_BEAMS if num_beams is None else num_beams, MOST_BEAMS),
            strategy=strategy,
            blank_aware=one_of("blank_scoring", blank_scoring, ("lm_weighted", "none")) == "lm_weighted",
            late=one_of("pruning", pruning, ("late", "early")) == "late",
            log_sum=one_of("merging", merging, ("log_sum", "max")) == "log_sum",
            max_symbols=model.max_symbols if self.max_symbols is None else whole("max_symbols", self.max_symbols),
            aes_steps=whole("aes_steps", 2 if self.aes_steps is None else self.aes_steps),
            aes_beta=whole("aes_beta", 1 if self.aes_beta is None else self.aes_beta, least=0),
            aes_gamma=2.3 if self.aes_gamma is None else float(self.aes_gamma),
            ilm_weight=0.0 if self.ilm_weight is None else check_number(self.ilm_weight, "ilm_weight"),
        )
