"""Convert between `NGramTable` and `BackoffAutomaton` with tensor operations, without a Python loop over n-grams."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..config.config import MAX_CONTEXT_LENGTH, NGramLMConfig
from ..errors import NGramFormatError
from ..ngrams.room import IN_MEMORY, Room
from ..ngrams.table import NUM_SPECIAL, NGramOrder, NGramTable, one_thread
from ..text.vocabulary import Vocabulary
from .automaton import BackoffAutomaton
from .steps import steps_for
from .tensors import AutomatonTensors

logger = logging.getLogger(__name__)

# KenLM's log-probability of <unk> for a model without <unk>: log10 p = -100.
MISSING_LOG_PROB = -100.0 * math.log(10.0)
# An n-gram that ends in <unk> needs an arc for each token that <unk> stands for. This is the limit for all these arcs together.
MAX_UNK_ARCS = 1 << 24


@dataclass(frozen=True)
class LMParts:
    """The parts of a language model. Readers, training and composition make the parts. `hf_ngpulm.NGramLM` wraps the parts.

    Args:
        config: see `hf_ngpulm.config.config.NGramLMConfig`.
        automaton: a static automaton, or an automaton composed on the fly (`hf_ngpulm.lexicon.lazy_model`).
        unk_tokens: int32 `[N]`, ascending: the token ids that have no unigram. In a word-level model, the token ids that occur
            in no word.
        pieces: the tokenizer's piece for each token id, or None.
    """

    config: NGramLMConfig
    automaton: BackoffAutomaton
    unk_tokens: Tensor
    pieces: tuple[str | None, ...] | None = None

    @classmethod
    def of_table(
        cls,
        table: NGramTable,
        vocabulary: Vocabulary | None = None,
        missing_unigrams: str | float = "share",
        engine: str = "auto",
        room: Room = IN_MEMORY,
    ) -> LMParts:
        """Make the parts of a language model from its table. `room` stores the tensors. Other arguments: see
        `NGramLM.from_arpa`.
        """
        vocabulary = vocabulary or Vocabulary(table.vocab_size)
        automaton, facts = automaton_from_table(table, missing_unigrams, engine, room)
        config = NGramLMConfig(
            vocab_size=table.vocab_size,
            order=table.order,
            num_ngrams=table.num_ngrams,
            states_per_depth=tuple(facts["states_per_depth"]),
            unk_log_prob=facts["unk_log_prob"],
            bos_log_prob=facts["bos_log_prob"],
            missing_unigrams=missing_unigrams,
            tokenizer_id=vocabulary.tokenizer_id,
            tokenizer_fingerprint=vocabulary.fingerprint,
        )
        pieces = None if vocabulary.pieces is None else tuple(vocabulary.pieces)
        return cls(config, automaton, facts["unk_tokens"], pieces)

    def with_config(self, **changed: Any) -> LMParts:
        """Return a copy with changed fields of the config."""
        return replace(self, config=replace(self.config, **changed))


@one_thread()
def automaton_from_table(
    table: NGramTable, missing_unigrams: str | float = "share", engine: str = "auto", room: Room = IN_MEMORY
) -> tuple[BackoffAutomaton, dict[str, Any]]:
    """Build the automaton of a backoff language model.

    Contexts become states. A context's backoff state is its longest proper suffix that is a state. If no n-gram extends a
    context, and the context's backoff weight is 0, the context gets no state, because it would behave like its backoff state.
    Some models lack suffixes of their n-grams, for example after pruning by SRILM. As in KenLM, a missing suffix has backoff
    weight 0.

    As in KenLM, `<unk>` replaces every token id without a unigram, also in contexts and in n-grams of any order. Unreachable
    n-grams are dropped. An n-gram is unreachable if it has tokens after `</s>` or before `<s>`, a token without a unigram, or
    `<unk>` although every token id has a unigram.

    Args:
        table: the n-grams.
        missing_unigrams: how to score a token id that has no unigram. "share" divides the probability of `<unk>` evenly among
            all such ids, so that the probabilities in a context, including `</s>`, sum to one. "unk" gives the whole
            probability to each id, as KenLM scores unknown words. A number (natural log) replaces the score of `<unk>`, and
            n-grams with `<unk>` are dropped.
        engine: engine of the automaton.
        room: where the tensors are stored.

    Returns:
        The automaton, and the data that `table_from_automaton` and the config need: `states_per_depth`, `unk_tokens`,
        `unk_log_prob`, `bos_log_prob`.

    Raises:
        NGramFormatError: the table has more n-grams, or longer n-grams, than an automaton can hold.
        ValueError: `missing_unigrams` isn't "share", "unk" or a finite number.
    """
    vocab_size, device = table.vocab_size, table.orders[0].tokens.device
    if table.order - 1 > MAX_CONTEXT_LENGTH:
        raise NGramFormatError(f"a model of order {table.order}; at most order {MAX_CONTEXT_LENGTH + 1} can be used")
    unigrams = table.orders[0].tokens.to(torch.int64)
    special = _special_unigrams(table)
    ordinary = unigrams < vocab_size
    seen = unigrams[ordinary]
    is_missing = torch.ones(vocab_size, dtype=torch.bool, device=device)
    is_missing[seen] = False
    unk_tokens = torch.nonzero(is_missing)[:, 0]
    unk_weight, unk_share = _missing_weight(missing_unigrams, special["unk"], unk_tokens.numel())
    unk_arcs = _count_last(table, table.unk, room) * unk_tokens.numel() if unk_tokens.numel() else 0
    unk_stands = special["unk"] is not None and unk_share is not None and unk_arcs <= MAX_UNK_ARCS

    possible = torch.zeros(table.num_ids, dtype=torch.bool, device=device)
    possible[unigrams] = True
    possible[table.bos], possible[table.eos], possible[table.unk] = False, True, unk_stands
    copied_tokens = unk_tokens if unk_stands and unk_arcs else unk_tokens[:0]
    built = steps_for(table).build(table, possible, copied_tokens, unk_share or 0.0, room)
    if built.unmet:
        logger.warning(
            "%d n-grams are left out that no text can meet: after </s>, with <s> inside, with a token that has no "
            "unigram, or with <unk> where it stands for no token (or for too many)",
            built.unmet,
        )

    # The root has an arc for every token and </s>.
    root = slice(0, vocab_size + 1)
    unk_row = table.row_of_unigram(table.unk)
    root_weights, root_targets = built.tensors.arc_weights[root], built.tensors.arc_targets[root]
    root_weights[:] = unk_weight
    root_targets[:] = 0 if unk_row is None else built.unigram_states[unk_row]
    root_weights[seen] = table.orders[0].log_probs[ordinary]
    root_targets[seen] = built.unigram_states[ordinary].to(torch.int32)
    if special["eos"] is None:
        logger.warning("the language model has no </s>; its probability is taken as 1e-100")
    root_weights[vocab_size] = MISSING_LOG_PROB if special["eos"] is None else special["eos"]
    root_targets[vocab_size] = built.start_state
    built.tensors.arc_tokens[root] = torch.arange(vocab_size + 1, device=device).to(built.tensors.arc_tokens.dtype)

    automaton = BackoffAutomaton(
        built.tensors,
        vocab_size,
        table.order - 1,
        roots=torch.zeros(1, dtype=torch.int32, device=device),
        starts=torch.full((1,), built.start_state, dtype=torch.int32, device=device),
        engine=engine,
    )
    return automaton, {
        "states_per_depth": built.states_per_depth,
        "unk_tokens": unk_tokens.to(torch.int32),
        "unk_log_prob": special["unk"],
        "bos_log_prob": special["bos"],
    }


def _count_last(table: NGramTable, token_id: int, room: Room) -> int:
    """Return the number of n-grams of order 2 and higher that end in a token."""
    return sum(
        int(torch.count_nonzero(order.tokens[rows] == token_id))
        for order in table.orders[1:]
        for rows in room.spans(len(order))
    )


def _special_unigrams(table: NGramTable) -> dict[str, float | None]:
    """Return the log-probabilities of the unigrams `<s>`, `</s>` and `<unk>`. The value of a missing unigram is None."""
    rows = {name: table.row_of_unigram(getattr(table, name)) for name in ("bos", "eos", "unk")}
    return {name: None if row is None else float(table.orders[0].log_probs[row]) for name, row in rows.items()}


def _missing_weight(missing_unigrams: str | float, unk_log_prob: float | None, count: int) -> tuple[float, float | None]:
    """Return two values. The first value is the score of each token id that has no unigram. The second value is the log of a
    factor: the probability of `<unk>` times this factor is the token's probability. If the score doesn't come from `<unk>`, the
    second value is None. `count`: number of token ids that have no unigram.
    """
    if isinstance(missing_unigrams, float | int) and not isinstance(missing_unigrams, bool):
        if not math.isfinite(missing_unigrams):
            raise ValueError(f"missing_unigrams should be a finite log-probability, got {missing_unigrams}")
        return float(missing_unigrams), None
    if missing_unigrams not in ("share", "unk"):
        raise ValueError(f"missing_unigrams must be 'share', 'unk' or a number, got {missing_unigrams!r}")
    if count == 0:
        return MISSING_LOG_PROB, None
    if unk_log_prob is None:
        logger.warning("%d token ids have no unigram and the language model has no <unk>; they score 1e-100", count)
        return MISSING_LOG_PROB, None
    share = -math.log(count) if missing_unigrams == "share" else 0.0
    return unk_log_prob + share, share


@one_thread()
def table_from_automaton(
    automaton: BackoffAutomaton,
    states_per_depth: list[int],
    unk_tokens: Tensor,
    unk_log_prob: float | None,
    bos_log_prob: float | None,
) -> NGramTable:
    """Return the table from which an automaton was built, without unreachable n-grams.

    This is the inverse of `automaton_from_table`. Log-probabilities of `<unk>` after a context are restored up to rounding.

    Raises:
        NGramFormatError: the automaton doesn't represent a language model (its numbers of states per depth don't fit its arcs).
    """
    t = AutomatonTensors(*(tensor.cpu() for tensor in automaton.tensors))
    vocab_size, start = automaton.vocab_size, int(automaton.starts[0])
    bos, eos, unk = vocab_size, vocab_size + 1, vocab_size + 2
    if (
        sum(states_per_depth) != t.num_states
        or len(states_per_depth) != automaton.context_length + 1
        or states_per_depth[0] != 1
        or min(states_per_depth) < 0
    ):
        raise NGramFormatError(f"{t.num_states} states can't have the depths {states_per_depth}")
    if automaton.roots.tolist() != [0] or int(t.arc_offsets[1]) != vocab_size + 1:
        raise NGramFormatError("the automaton isn't one language model's: its root hasn't an arc for every token")
    # The arcs of the first token without a unigram are those of <unk>; the arcs of the other such tokens are copies.
    is_unk_token = torch.zeros(vocab_size + NUM_SPECIAL, dtype=torch.bool)
    is_unk_token[unk_tokens.to(torch.int64).cpu()] = True
    first_unk, unk_share, unk_target = -1, 0.0, 0
    if unk_log_prob is not None and unk_tokens.numel():
        first_unk = int(unk_tokens[0])
        unk_share, unk_target = unk_log_prob - float(t.arc_weights[first_unk]), int(t.arc_targets[first_unk])
    row_of_state = torch.zeros(t.num_states, dtype=torch.int32)
    # States of equal depth are adjacent, and so are their arcs.
    bounds = [*accumulate(states_per_depth, initial=0), t.num_states]
    orders = []
    for n in range(1, automaton.context_length + 2):
        first, last, last_longer = bounds[n - 1 : n + 2]
        arcs = slice(int(t.arc_offsets[first]), int(t.arc_offsets[last]))
        tokens = t.arc_tokens[arcs].to(torch.int64)
        tokens[tokens == vocab_size] = eos
        log_probs = t.arc_weights[arcs].clone()
        # An arc to a context that is one token longer is the n-gram of that context; every other arc leads to a suffix.
        contexts = t.arc_targets[arcs].to(torch.int64)
        contexts[(contexts < last) | (contexts >= last_longer) | (tokens == eos)] = -1
        prefixes = row_of_state[first:last].to(torch.int64).repeat_interleave(t.arc_offsets[first : last + 1].diff())
        if unk_tokens.numel():
            written = ~is_unk_token[tokens]
            if n > 1:
                of_unk = tokens == first_unk
                tokens[of_unk] = unk
                log_probs[of_unk] = (log_probs[of_unk] + unk_share).clamp(max=0.0)
                written |= of_unk
            prefixes, tokens, log_probs, contexts = (column[written] for column in (prefixes, tokens, log_probs, contexts))
        if n == 1:
            special = [(bos, bos_log_prob, start or -1), (unk, unk_log_prob, unk_target or -1)]
            special = [(token, value, context) for token, value, context in special if value is not None]
            prefixes = torch.cat([prefixes, torch.zeros(len(special), dtype=torch.int64)])
            tokens = torch.cat([tokens, torch.tensor([s[0] for s in special], dtype=torch.int64)])
            log_probs = torch.cat([log_probs, torch.tensor([s[1] for s in special], dtype=torch.float32)])
            contexts = torch.cat([contexts, torch.tensor([s[2] for s in special], dtype=torch.int64)])
        key = prefixes * (vocab_size + NUM_SPECIAL) + tokens
        if not bool((key[1:] > key[:-1]).all()):
            by_key = torch.argsort(key)
            prefixes, tokens, log_probs, contexts = (column[by_key] for column in (prefixes, tokens, log_probs, contexts))
        rows = torch.nonzero(contexts >= 0)[:, 0]
        if rows.numel() != (states_per_depth[n] if n < len(states_per_depth) else 0):
            raise NGramFormatError(f"the states of depth {n} aren't those that depth {n - 1} leads to")
        contexts = contexts[rows]
        backoffs = torch.zeros_like(log_probs)
        backoffs[rows] = t.backoff_weights[contexts]
        row_of_state[contexts] = rows.to(torch.int32)
        orders.append(NGramOrder(prefixes, tokens.to(torch.int32), log_probs, backoffs))
    return NGramTable(vocab_size, tuple(orders))
