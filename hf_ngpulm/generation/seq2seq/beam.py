"""Run a beam search that gives the same results as the beam search of Transformers.

The algorithm is the same as in Transformers. The best continuations of a recording's beams become candidates. There are more
candidates than beams. Candidates that end compete with hypotheses that ended earlier. The best of the remaining candidates
become the next beams. The implementation differs:

- Each beam's best tokens are found in the beam's row of scores, and only these tokens are compared (no sums over beams x
  vocabulary).
- A candidate is stored as a token and its parent, not as a copy of its sequence. Sequences are traced back at the end.
- The cross-attention cache isn't moved, because it is the same for all beams of a recording.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from ...decoding.families import CACHE
from ...search.attention_step.candidates import best_tokens
from .greedy import probabilities, refuse_impossible
from .model import SteppedDecoder
from .states import Scoring

CPU = torch.device("cpu")  # named because the caller may have set another default device

# As in Transformers, which since 5.24 sorts drawn continuations; before, they kept the order in which they were drawn.
SORTS_DRAWN = CACHE == "cache"
OUT = -1.0e9  # penalty of impossible hypotheses, as in Transformers
LAST_ONLY = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria)  # criteria that need only the last token and the length


class BeamStep(NamedTuple):
    """Hold a step's `N` candidates of each recording, and the choice of the next beams."""

    # tokens, beams: [B, N], a candidate's token, and the beam that it continues
    tokens: Tensor
    beams: Tensor
    chosen: Tensor  # [B, K], the candidates that are the next step's beams
    own: Tensor | None  # [B, N], the model's own log-probability of each token; None if it isn't kept


class Ended(NamedTuple):
    """Hold the best finished hypotheses of each recording. Scores, nodes, and the mask of real entries are `[B, K]` each.

    An entry that isn't real is a placeholder. A node numbers the candidates of all steps: `step * N + candidate`.
    """

    scores: Tensor
    real: Tensor
    nodes: Tensor


def beam_search(
    decoder: SteppedDecoder,
    scoring: Scoring,
    stopping_criteria: StoppingCriteriaList,
    config: GenerationConfig,
    input_ids: Tensor,
    sums: bool = False,
) -> Any:
    """Extend rows of tokens, int64 `[B * K, L]` (K beams per recording), until they end. Return the result of `generate`.
    Raises InvalidLogitsError if all tokens of a recording are ruled out, or if a recording's scores are NaN.

    `sums`: whether to return `sequences_scores` even without `output_scores`.
    """
    beams, prompt = config.num_beams, input_ids.shape[1]
    rows, device = len(input_ids), input_ids.device
    batch_size = rows // beams
    ends = config._eos_token_tensor
    # There are enough candidates to continue all beams even if the best candidates end.
    count = max(2, 1 + (0 if ends is None else len(ends))) * beams
    first_row = torch.arange(batch_size, device=device)[:, None] * beams
    top = torch.arange(count, device=device) < beams
    running = torch.zeros((batch_size, beams), device=device)
    running[:, 1:] = OUT  # all beams begin with equal tokens, so only the first one counts
    ended = Ended(
        torch.full((batch_size, beams), OUT, device=device),
        torch.zeros((batch_size, beams), dtype=torch.bool, device=device),
        torch.full((batch_size, beams), -1, device=device),
    )
    may_improve = torch.ones((batch_size, 1), dtype=torch.bool, device=device)
    sequences, steps = input_ids, list[BeamStep]()
    while True:
        scores = torch.log_softmax(decoder.logits(sequences), -1)
        scores = scoring(sequences, scores, decoder.unheard)
        decoder.keep_scores(scores)
        choose = _draw if config.do_sample else _best
        best, tokens, of_beam = choose(scores, running, count)
        come_from = first_row + of_beam
        own = scoring.own_log_probs(come_from.flatten(), tokens.flatten())

        done = _are_done(stopping_criteria, sequences, come_from, tokens, decoder)
        deciding = may_improve[:, 0] & ~(ended.real.all(1) & (config.early_stopping is True))
        impossible = deciding & ~(best.amax(1) > -torch.inf)

        length = sequences.shape[1] + 1 - prompt
        scored = best / length**config.length_penalty
        for out in (~deciding[:, None], ~(done & top)):
            scored = scored + out * OUT
        nodes = torch.arange(count, device=device) + len(steps) * count
        ended = _best_of(ended, Ended(scored, done & top, nodes.expand(batch_size, -1)), beams)

        running, chosen = torch.topk(best + done * OUT, beams)
        steps.append(BeamStep(tokens, of_beam, chosen, None if own is None else own.view_as(tokens)))
        parents, next_tokens = come_from.gather(1, chosen).flatten(), tokens.gather(1, chosen).flatten()
        sequences = torch.cat([sequences.index_select(0, parents), next_tokens[:, None]], 1)
        decoder.reorder(parents)

        # A running hypothesis may still beat the worst finished hypothesis, at its most favourable length.
        at_best = config.max_length - prompt if config.early_stopping == "never" and config.length_penalty > 0 else length
        worst = torch.where(ended.real, ended.scores.amin(1, keepdim=True), OUT)
        may_improve = may_improve & (running[:, :1] / at_best**config.length_penalty > worst).any(1, keepdim=True)
        full = ended.real.all() & (config.early_stopping is True)
        # The only synchronisation with the device in a step.
        going_on, broken = torch.stack([may_improve.any() & ~full & ~done.all(), impossible.any()]).tolist()
        if broken:
            refuse_impossible(impossible, scores.isnan().view(batch_size, -1).any(1), scoring.recordings[::beams])
        if not going_on:
            break
        scoring.follow(next_tokens, parents)

    returned = config.num_return_sequences
    traced = _trace(steps, ended.nodes[:, :returned].cpu(), beams)
    lengths = traced["lengths"]
    longest = int(lengths.max())
    fill = _fill_value(config)
    texts = torch.where(torch.arange(longest, device=CPU) < lengths[:, None], traced["tokens"][:, :longest], fill).to(device)
    prompts = input_ids[::beams].repeat_interleave(returned, 0)
    kept: dict[str, Any] = {"beam_indices": traced["rows"][:, :longest].contiguous().to(device)}
    kept["sequences_scores"] = ended.scores[:, :returned].flatten() if sums or decoder.keeps_scores else None
    if "own" in traced:
        kept["own_log_probs"] = traced["own"][:, :longest]
    return decoder.result(torch.cat([prompts, texts], 1), **kept)


def _best(scores: Tensor, running: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the N best continuations of each recording's beams. Return their scores, tokens and beams, `[B, N]` each.

    `scores`: `[B * K, C]`, the next token's scores. `running`: `[B, K]`, the beams' scores so far. `count`: N.
    """
    batch_size, beams = running.shape
    each = min(count, scores.shape[1])
    values, tokens = best_tokens(scores, each)
    sums = (running[:, :, None] + values.view(batch_size, beams, each)).view(batch_size, -1)
    best, places = torch.topk(sums, count)
    return best, tokens.view(batch_size, -1).gather(1, places), places // each


def _draw(scores: Tensor, running: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw N continuations at random without replacement. Arguments and results are as for `_best`."""
    sums = (running[:, :, None] + scores.view(*running.shape, -1)).flatten(1)
    drawn = torch.multinomial(probabilities(sums), count)
    of_drawn = sums.gather(1, drawn)
    if SORTS_DRAWN:
        of_drawn, order = of_drawn.sort(descending=True)
        drawn = drawn.gather(1, order)
    return of_drawn, drawn % scores.shape[1], drawn // scores.shape[1]


def _are_done(
    criteria: StoppingCriteriaList, sequences: Tensor, rows: Tensor, tokens: Tensor, decoder: SteppedDecoder
) -> Tensor:
    """Return a bool mask `[B, N]` of the candidates that end. A candidate is a row of `sequences` and a next token. `rows`,
    `[B, N]`, has the index of this row, `tokens`, `[B, N]`, has the next token.
    """
    last = tokens.reshape(-1, 1)
    if all(type(each) in LAST_ONLY for each in criteria):
        candidates = last.expand(-1, sequences.shape[1] + 1)
    else:
        candidates = torch.cat([sequences.index_select(0, rows.flatten()), last], 1)
    return criteria(candidates, decoder.scores).view_as(tokens)


def _best_of(ended: Ended, new: Ended, count: int) -> Ended:
    scores, real, nodes = (torch.cat(parts, 1) for parts in zip(ended, new))
    scores, best = torch.topk(scores, count)
    return Ended(scores, real.gather(1, best), nodes.gather(1, best))


def _trace(steps: list[BeamStep], nodes: Tensor, beams: int) -> dict[str, Tensor]:
    """Return the hypotheses that end in the nodes `[B, R]`, on the CPU, as a dictionary.

    Each entry has `B * R` rows, one per hypothesis. The entries are "tokens"; "rows", int32, the row that each token had in its
    step (-1 after the end); "own", the model's own log-probabilities (if kept); and "lengths".
    """
    batch_size, returned = nodes.shape
    count = steps[0].tokens.shape[1]
    last, candidates = nodes // count, nodes % count
    names = [name for name in BeamStep._fields if getattr(steps[0], name) is not None]
    fields = {name: torch.stack([getattr(step, name) for step in steps]).cpu() for name in names}
    tokens = torch.zeros((len(steps), batch_size, returned), dtype=torch.int64, device=CPU)
    rows = torch.full(tokens.shape, -1, dtype=torch.int32, device=CPU)
    own = torch.zeros(tokens.shape, device=CPU) if "own" in fields else None
    first_row = torch.arange(batch_size, device=CPU)[:, None] * beams
    for index in range(len(steps) - 1, -1, -1):
        inside = (index <= last) & (nodes >= 0)
        of_beam = fields["beams"][index].gather(1, candidates)
        tokens[index] = fields["tokens"][index].gather(1, candidates)
        rows[index] = torch.where(inside, first_row + of_beam, -1).to(torch.int32)
        if own is not None:
            own[index] = fields["own"][index].gather(1, candidates)
        if index:
            candidates = torch.where(index <= last, fields["chosen"][index - 1].gather(1, of_beam), candidates)
    traced = {"tokens": tokens, "rows": rows} | ({} if own is None else {"own": own})
    return {name: value.flatten(1).T for name, value in traced.items()} | {"lengths": (last + 1).flatten()}


def _fill_value(config: GenerationConfig) -> int:
    """Return the token that fills rows after a hypothesis. As in Transformers, a padding token with id 0 counts as unset."""
    if config._eos_token_tensor is None:
        return -1
    return int(config._pad_token_tensor or 0) or int(config._eos_token_tensor[0])
