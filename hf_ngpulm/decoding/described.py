"""Describe the options that the command line and the server share. This module doesn't import torch."""

from __future__ import annotations

from typing import Any, NamedTuple

MOST_WEIGHT = 100.0  # largest weight that the server accepts


class Described(NamedTuple):
    """Describe an option."""

    help: str  # one sentence, with the unit of a number
    default: str | None = None  # the default, in words
    # least, most: bounds of a number in the server
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()  # the allowed values, if they can be listed

    def line(self) -> str:
        """Return the help text for the command line."""
        return self.help if self.default is None else f"{self.help.removesuffix('.')} [default: {self.default}]."

    def schema(self) -> dict[str, Any]:
        """Return the option's help text, bounds and choices as JSON Schema. The caller adds the type."""
        schema = {"description": self.help, "minimum": self.least, "maximum": self.most, "enum": list(self.choices) or None}
        return {name: value for name, value in schema.items() if value is not None}


OPTIONS = {
    "lm": Described("Language model: folder, Hub id, ARPA or .nemo file."),
    "lm_weight": Described("Weight of the language model.", "what was tuned, or else 0.8", 0.0, MOST_WEIGHT),
    "phrase_weight": Described("Weight of the phrases.", "1", -100.0, MOST_WEIGHT),
    "num_beams": Described(
        "Beam width; 1 is greedy, auto the best trade-off that was measured for the kind of model.",
        "auto with an LM or phrases, else 1",
    ),
    "strategy": Described(
        "For transducers: greedy, alsd or aes (both beam searches); for CTC: graph.", choices=("greedy", "alsd", "aes")
    ),
    "beta": Described("For CTC: bonus for each token in beam search."),
    "ilm_weight": Described(
        "For transducers and decoders with attention: weight of the internal language model, subtracted.",
        "0.7 of the LM's for transducers",
    ),
    "lm_guard": Described(
        "Least evidence of the language model, in nats per token; recordings where it has less are decoded again without it; "
        "auto: also those where it costs much acoustic score; off: never.",
        "auto",
    ),
    "source_lm": Described("Language model of the text that the model was trained on, to be subtracted."),
    "source_weight": Described("Weight of the source language model.", "half of the LM's"),
    "rescorer": Described("Causal language model (folder or Hub id) that ranks the beam's hypotheses anew."),
    "rescorer_weight": Described("Weight of the rescorer.", "0.3"),
    "rescorer_best": Described("Hypotheses of a wider beam that the rescorer reads, the best ones.", "all"),
    "rescorer_every": Described(
        "Seconds of audio after which the rescorer also ranks the hypotheses during the search (delayed fusion), or "
        "'word': as soon as there is a word.",
        "at the end only",
    ),
    "word_bonus": Described("With a rescorer: bonus for each word.", "0"),
    "pause_seconds": Described("For transducers: a new sentence begins where nothing is heard for so long, such as 0.32."),
    "num_return_sequences": Described("Hypotheses to show, with --num-beams."),
}
