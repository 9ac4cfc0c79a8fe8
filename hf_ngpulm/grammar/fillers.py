"""Words that people say before and after a command: "um, turn on the light, please"."""

from __future__ import annotations

from collections.abc import Iterable

from ..common.checks import check, number
from ..errors import GrammarError
from .expressions import Choice, Expression, Repeat, Sequence, Words

PRICE = 2.0  # penalty of each filler (natural log)
MOST_FILLERS = 4  # on each side of a sentence; without a limit a decoder with attention would repeat them without end
FILLERS = {
    "de": "äh ähm hm so also na ja okay hey hallo bitte danke mal, kannst du, könntest du, kannst du bitte, ich möchte",
    "en": "um uh er hmm so well okay now hey hello please thanks, thank you, can you, could you, would you, i would like to",
    "es": "eh em este pues bueno vale oye hola gracias, por favor, puedes, podrías, quiero",
    "fr": "euh hum alors bon okay hé bonjour merci, s'il te plaît, s'il vous plaît, peux-tu, est-ce que tu peux, je voudrais",
    "it": "ehm eh allora bene okay ehi ciao grazie, per favore, per piacere, puoi, potresti, vorrei",
    "nl": "eh ehm nou dus oké hé hallo alsjeblieft alstublieft dank, dank je, kun je, kan je, wil je, ik wil graag",
    "pl": "yyy eee no więc dobra okej hej cześć proszę dziękuję, czy możesz, możesz, chciałbym, chciałabym",
    "pt": "ah hum então bem okay ei olá obrigado obrigada, por favor, podes, você pode, queria",
}


def fillers_of(language: str) -> list[str]:
    """Return the fillers of a language. Raises GrammarError if there are none."""
    if language not in FILLERS:
        raise GrammarError(f"there are no fillers for {language!r}; pass a list of them, or one of {', '.join(FILLERS)}")
    single, *longer = FILLERS[language].split(", ")
    return [*single.split(), *longer]


def between_fillers(expression: Expression, fillers: str | Iterable[str], price: float) -> Expression:
    """Return an expression with up to four fillers before it and after it. Arguments are as for `Grammar.with_fillers`."""
    check("price", price, number(0))
    words = [Words(filler) for filler in (fillers_of(fillers) if isinstance(fillers, str) else fillers)]
    if not words or not all(each.text.strip() for each in words):
        raise GrammarError(f"fillers should be texts with words, got {[each.text for each in words]}")
    edge = Repeat(Choice(*words, weights=[-price] * len(words)), most=MOST_FILLERS)
    return Sequence(edge, expression, edge)
