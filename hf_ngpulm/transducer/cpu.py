"""Label looping as compiled loops: what happens between two runs of the networks (`walk`), or all of it (`loop`).

`loop` holds a few rows at a time, so that each product of matrices serves several; when a row ends the next one takes its
place. No table outlives a call: the weights may change between two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..automaton.cpu import CPU, arrays_of, borrowed, borrowed_automaton, compiled, score_one, step_one
from ..automaton.tensors import AutomatonTensors
from ..automaton.threads import in_threads
from ..confidence import ALPHA, MEASURES, confidence_of_sums
from .cpu_networks import (
    add_product,
    convolve,
    highest_class,
    join_inputs,
    lstm_cell,
    matrix_at,
    normaliser_of,
    place_of,
    sum_for_confidence,
)
from .networks import ACTIVATIONS, TransducerNetworks
from .rows import Rows, Rules

SLOTS = 32  # rows that are decoded together
WINDOW = 2  # frames of a row that are looked at in one go
LINES = 4  # frames that products take at once


class Carried(NamedTuple):
    """What the networks know of rows that go on when more frames come; the loop reads and writes it.

    Args:
        begun: bool `[R]`; what the rest holds for a row that hasn't begun means nothing.
        states: float32 `[P, R, H]`: hidden states of all layers and then cells, or embeddings of the tokens before the last.
        predictions: float32 `[R, D]`.
    """

    begun: Tensor
    states: Tensor
    predictions: Tensor

    @classmethod
    def room(cls, networks: TransducerNetworks, rows: int) -> Carried:
        """For so many rows, none of which has begun."""
        projection = networks.projection
        return cls(
            torch.zeros(rows, dtype=torch.bool, device=CPU),
            projection.new_zeros((networks.num_parts, rows, projection.shape[1])),
            projection.new_zeros((rows, projection.shape[0])),
        )


def walk(automaton: AutomatonTensors, rules: Rules, rows: Rows, logits: Tensor, internal: Tensor) -> tuple[Tensor, Tensor]:
    tokens = torch.full(logits.shape[:2], -1, dtype=torch.int64, device=CPU)
    moves = torch.zeros_like(tokens)
    _walk_rows(
        *arrays_of(automaton), *_numbers(rules), *(part.numpy() for part in rows[1:]),
        logits.contiguous().numpy(), internal.contiguous().numpy(), tokens.numpy(), moves.numpy(),
    )  # fmt: skip
    return tokens, moves


def loop(
    networks: TransducerNetworks,
    frames: Tensor,
    automaton: AutomatonTensors,
    rules: Rules,
    rows: Rows,
    confidence: str | None,
    window: int | None = None,
    carried: Carried | None = None,
) -> list[tuple[Tensor, ...]]:
    """Take the rows to their ends; the result is all steps: row, class, duration and confidence, in order within each row.

    With something `carried` they can go on from there.
    """
    if carried is None:
        carried = Carried.room(networks, 0)
    layers = networks.layers
    window = window or max(WINDOW, LINES // max(len(rows.numbers), 1))
    addresses = torch.tensor(
        [[part.data_ptr() for part in (layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh)] for layer in layers],
        dtype=torch.int64,
        device=CPU,
    ).view(-1, 4)
    weights = (networks.embedding, networks.projection, networks.projection_bias, networks.head, networks.head_bias)
    arrays = (
        *arrays_of(automaton), *_numbers(rules), *(part.numpy() for part in rows[1:]), frames.detach().contiguous().numpy(),
        addresses.numpy(), networks.convolution.contiguous().numpy(), networks.convolution_bias.numpy(),
        networks.projection.shape[1], *(part.numpy() for part in weights), networks.separate_blank,
        ACTIVATIONS.index(networks.activation), -1 if confidence is None else MEASURES.index(confidence), np.float32(ALPHA),
        window, SLOTS, *(part.numpy() for part in carried),
    )  # fmt: skip
    work = frames.shape[1] * networks.head.numel() // 16
    found = in_threads(lambda first, last: _loop_rows(first, last, *arrays), len(rows.numbers), work)
    steps: list[tuple[Tensor, ...]] = []
    for numbers, tokens, moves, sums, _ in found:
        confidences = torch.from_numpy(sums)
        if confidence is not None:
            confidences = confidence_of_sums(confidences, confidence, rules.classes)
            confidences.masked_fill_(torch.from_numpy(tokens) == rules.blank, 0.0)
        steps.append((torch.from_numpy(numbers), torch.from_numpy(tokens), torch.from_numpy(moves), confidences))
    return steps


def _numbers(rules: Rules) -> tuple[object, ...]:
    return (
        rules.blank, rules.classes, rules.durations.numpy(), rules.vocab_size, rules.max_symbols, np.float32(rules.ilm_weight)
    )  # fmt: skip


@compiled
def _follow_blanks(
    logits, line, length, blank, classes, durations, row, times, symbols, acoustic_scores, bad_frames, slot, tokens, moves
):
    """Follow the blanks of a row through a window of frames, `logits[line : line + length]`.

    Returns:
        The place in the window at which the model says something else, -1 if it doesn't; what it says, its duration, the
        normaliser of the token classes there, and the duration's log-probability.
    """
    place = 0
    while place < length:
        best, normaliser = normaliser_of(logits, line + place, 0, classes)
        move, duration_log_prob = np.int64(best == blank), np.float32(0.0)
        if durations.size:
            longest, duration_normaliser = normaliser_of(logits, line + place, classes, classes + durations.size)
            move = durations[longest - classes]
            duration_log_prob = logits[line + place, longest] - duration_normaliser
        if not np.isfinite(normaliser + duration_log_prob):
            bad_frames[row] = times[row]
            break
        if best != blank:
            return place, best, move, normaliser, duration_log_prob
        move = max(move, 1)
        acoustic_scores[row] += logits[line + place, blank] - normaliser + duration_log_prob
        tokens[slot, place], moves[slot, place] = blank, move
        symbols[row] = 0
        times[row] += move
        place += move
    return -1, np.int64(-1), np.int64(0), np.float32(0.0), np.float32(0.0)


@compiled
def _choose(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, line, internal, internal_line, internal_normaliser, token, move, score,
    blank, classes, vocab_size, max_symbols, ilm_weight,
    row, weights, times, symbols, lm_states, acoustic_scores, lm_scores, ilm_scores,
    fused, one, chain,
):  # fmt: skip
    """Choose anew where the model says `token`, and move on.

    `score` is what the log-probability of the step lacks besides the token's logit.

    Returns:
        The token, the frames moved on behind it, and the room for chains (see `score_one`).
    """
    listens = False
    for m in range(lm_states.shape[1]):
        listens |= weights[row, m] != 0.0
    candidates = min(vocab_size, classes) if listens else classes
    if token < candidates and (listens or ilm_weight != 0.0):
        for c in range(np.uintp(candidates)):
            fused[c] = logits[line, c]
        for m in range(lm_states.shape[1]):
            weight = weights[row, m]
            if weight != 0.0:
                chain = score_one(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    lm_states[row, m], vocab_size, chain, one,
                )  # fmt: skip
                for c in range(np.uintp(candidates)):
                    fused[c] += weight * one[c]
        if ilm_weight != 0.0:
            for c in range(np.uintp(candidates)):
                fused[c] -= ilm_weight * (internal[internal_line, c] - internal_normaliser)
        if blank < candidates:
            fused[blank] = -np.inf
        token = _first_highest(fused, candidates, token)
        if ilm_weight != 0.0:
            ilm_scores[row] += internal[internal_line, token] - internal_normaliser
    for m in range(lm_states.shape[1]):
        lm_score, lm_states[row, m] = step_one(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            lm_states[row, m], token, vocab_size,
        )  # fmt: skip
        lm_scores[row, m] += lm_score
    acoustic_scores[row] += logits[line, token] + score
    symbols[row] += 1
    if move == 0 and symbols[row] >= max_symbols:
        move = 1
    if move > 0:
        symbols[row] = 0
        times[row] += move
    return token, move, chain


@compiled
def _first_highest(x, size, otherwise):
    """The first of the highest above -inf; `otherwise` if there is none (weights so large that nothing is possible)."""
    for c in range(np.uintp(size)):
        x[c] = x[c] if x[c] == x[c] else np.float32(-np.inf)
    line = x.reshape(1, x.size)
    highest = highest_class(line, 0, 0, size)
    return place_of(line, 0, 0, size, highest) if highest > -np.inf else otherwise


@compiled
def _walk_rows(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    blank, classes, durations, vocab_size, max_symbols, ilm_weight,
    ends, weights, times, symbols, lm_states, acoustic_scores, lm_scores, ilm_scores, bad_frames,
    logits, internal, tokens, moves,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    lines = logits.reshape(-1, logits.shape[2])
    window = tokens.shape[1]
    fused = np.empty(classes, dtype=np.float32)
    one = np.empty(max(vocab_size, 1), dtype=np.float32)
    chain = np.empty(16, dtype=np.int32)
    for row in range(times.size):
        place, token, move, normaliser, duration_log_prob = _follow_blanks(
            lines, row * window, min(window, ends[row] - times[row]), blank, classes, durations,
            row, times, symbols, acoustic_scores, bad_frames, row, tokens, moves,
        )  # fmt: skip
        if place >= 0:
            tokens[row, place], moves[row, place], chain = _choose(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                lines, row * window + place, internal, row, np.float32(0.0), token, move, duration_log_prob - normaliser,
                blank, classes, vocab_size, max_symbols, ilm_weight,
                row, weights, times, symbols, lm_states, acoustic_scores, lm_scores, ilm_scores, fused, one, chain,
            )  # fmt: skip


@compiled
def _predict(
    count, slots, tokens, embedding, layers, convolution, convolution_bias, hidden_size, projection, projection_bias,
    hidden, cell, predictions, places, table, used, inputs, gates, below, projected,
):  # fmt: skip
    """The prediction network, one token on, in `count` slots.

    What the first layer makes of a token is kept in `table`, at `places[token]` (-1 for nothing); `used` is the number of its
    lines. All else is room.

    Returns:
        The number of lines in `table`.
    """
    if layers.shape[0]:
        used = _lstm(
            count, slots, tokens, embedding, layers, hidden_size, hidden, cell, places, table, used, inputs, gates, below
        )  # fmt: skip
    else:
        convolve(count, slots, tokens, slots, embedding, convolution, convolution_bias, cell, below)
    for i in range(count):
        for d in range(np.uintp(projection_bias.size)):
            projected[i, d] = projection_bias[d]
    add_product(below, projection, projected, count)
    for i in range(count):
        slot = slots[i]
        for d in range(np.uintp(projection_bias.size)):
            predictions[slot, d] = projected[i, d]
    return used


@compiled
def _lstm(count, slots, tokens, embedding, layers, hidden_size, hidden, cell, places, table, used, inputs, gates, below):
    """An LSTM, whose highest layer's output goes into `below`; see `_predict`."""
    fresh = 0
    weight_ih = matrix_at(layers[0, 0], 4 * hidden_size, embedding.shape[1])
    for i in range(count):
        if places[tokens[i]] < 0:
            places[tokens[i]] = used + fresh
            for e in range(np.uintp(embedding.shape[1])):
                inputs[fresh, e] = embedding[tokens[i], e]
            fresh += 1
    if fresh:
        made = table[used : used + fresh]
        _fill_with_biases(layers, 0, hidden_size, made, fresh)
        add_product(inputs, weight_ih, made, fresh)
        used += fresh
    for layer in range(layers.shape[0]):
        if layer == 0:
            for i in range(count):
                place = places[tokens[i]]
                for j in range(np.uintp(4 * hidden_size)):
                    gates[i, j] = table[place, j]
        else:
            _fill_with_biases(layers, layer, hidden_size, gates, count)
            add_product(below, matrix_at(layers[layer, 0], 4 * hidden_size, hidden_size), gates, count)
        for i in range(count):
            slot = slots[i]
            for j in range(np.uintp(hidden_size)):
                inputs[i, j] = hidden[layer, slot, j]
        add_product(inputs, matrix_at(layers[layer, 1], 4 * hidden_size, hidden_size), gates, count)
        for i in range(count):
            lstm_cell(gates, i, hidden, cell, layer, slots[i], below)
    return used


@compiled
def _fill_with_biases(layers, layer, hidden_size, out, count):
    bias_ih = matrix_at(layers[layer, 2], 1, 4 * hidden_size)
    bias_hh = matrix_at(layers[layer, 3], 1, 4 * hidden_size)
    for i in range(count):
        for j in range(np.uintp(4 * hidden_size)):
            out[i, j] = bias_ih[0, j] + bias_hh[0, j]


@compiled
def _head(count, inputs, head, head_bias, out):
    for i in range(count):
        for c in range(np.uintp(head_bias.size)):
            out[i, c] = head_bias[c]
    add_product(inputs, head, out, count)


@compiled
def _loop_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    blank, classes, durations, vocab_size, max_symbols, ilm_weight,
    all_ends, all_weights, all_times, all_symbols, all_lm_states, all_acoustic_scores, all_lm_scores, all_ilm_scores,
    all_bad_frames, all_frames, all_layers, all_convolution, all_convolution_bias, hidden_size, all_embedding, all_projection,
    all_projection_bias, all_head, all_head_bias, separate_blank, activation, measure, alpha, window, num_slots, begun,
    carried_states, carried_predictions,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    ends, weights, times, symbols = borrowed(all_ends), borrowed(all_weights), borrowed(all_times), borrowed(all_symbols)
    lm_states, acoustic_scores = borrowed(all_lm_states), borrowed(all_acoustic_scores)
    lm_scores, ilm_scores, bad_frames = borrowed(all_lm_scores), borrowed(all_ilm_scores), borrowed(all_bad_frames)
    frames, layers, embedding = borrowed(all_frames), borrowed(all_layers), borrowed(all_embedding)
    convolution, convolution_bias = borrowed(all_convolution), borrowed(all_convolution_bias)
    projection, projection_bias = borrowed(all_projection), borrowed(all_projection_bias)
    head, head_bias = borrowed(all_head), borrowed(all_head_bias)

    num_slots = max(min(num_slots, last - first), 1)
    num_layers, size, gate_size, width = layers.shape[0], hidden_size, 4 * hidden_size, projection_bias.size
    num_parts = carried_states.shape[0]
    states_room = np.zeros((num_parts, num_slots, size), dtype=np.float32)
    start_room = np.empty((num_parts, size), dtype=np.float32)
    predictions_room = np.empty((num_slots + 1, width), dtype=np.float32)
    inputs_room = np.empty((num_slots, max(size, embedding.shape[1])), dtype=np.float32)
    gates_room = np.empty((num_slots, gate_size), dtype=np.float32)
    below_room = np.empty((num_slots, size), dtype=np.float32)
    projected_room = np.empty((num_slots, width), dtype=np.float32)
    table_room = np.empty((embedding.shape[0] if num_layers else 0, gate_size), dtype=np.float32)
    joined_room = np.empty((num_slots * window, width), dtype=np.float32)
    logits_room = np.empty((num_slots * window, head_bias.size), dtype=np.float32)
    internal_room = np.empty((num_slots if ilm_weight != 0.0 else 0, head_bias.size), dtype=np.float32)
    fused_room = np.empty(max(vocab_size, classes), dtype=np.float32)
    one_room = np.empty(max(vocab_size, 1), dtype=np.float32)
    steps_room = np.empty((2, num_slots, window), dtype=np.int64)
    integers_room = np.empty((7, num_slots), dtype=np.int64)
    singles_room = np.empty((3, num_slots), dtype=np.float32)
    places_room = np.full(embedding.shape[0], -1, dtype=np.int64)
    chain = np.empty(16, dtype=np.int32)

    states = borrowed(states_room)
    hidden, cell = states[:num_layers], states[num_layers:]
    start, predictions, inputs, gates = (
        borrowed(start_room), borrowed(predictions_room), borrowed(inputs_room), borrowed(gates_room)
    )  # fmt: skip
    below, projected, table, joined = (
        borrowed(below_room), borrowed(projected_room), borrowed(table_room), borrowed(joined_room)
    )  # fmt: skip
    logits, internal, fused, one = borrowed(logits_room), borrowed(internal_room), borrowed(fused_room), borrowed(one_room)
    steps, integers, singles, places = (
        borrowed(steps_room), borrowed(integers_room), borrowed(singles_room), borrowed(places_room)
    )  # fmt: skip
    tokens, moves = steps[0], steps[1]
    rows, begins = integers[0], integers[1]  # by slot: the row (-1 for none), and its first line of logits
    # What is emitted in this turn: slots, places in the window, tokens, and their durations; and the slots that go on.
    emitting, at, said, lasting, going = integers[2], integers[3], integers[4], integers[5], integers[6]
    normalisers, duration_log_probs, sums = singles[0], singles[1], singles[2]

    # All rows begin alike. (The first slot is used for that while no row is in it.)
    rows[:] = -1
    used = 0
    carries = begun.size > 0
    any_begins = not carries
    for row in range(first, last):
        any_begins |= carries and times[row] < ends[row] and not begun[row]
    if any_begins:
        emitting[0], said[0] = 0, blank
        if num_layers == 0:  # before the first token there are blanks
            for part in range(num_parts):
                for j in range(size):
                    states[part, 0, j] = embedding[blank, j]
        used = _predict(
            1, emitting, said, embedding, layers, convolution, convolution_bias, size, projection, projection_bias, hidden,
            cell, predictions, places, table, 0, inputs, gates, below, projected,
        )  # fmt: skip
        for part in range(num_parts):
            for j in range(size):
                start[part, j] = states[part, 0, j]
        for d in range(width):
            predictions[num_slots, d] = predictions[0, d]

    count = 0
    log_rows = np.empty(64 * num_slots, dtype=np.int64)
    log_tokens, log_moves = np.empty_like(log_rows), np.empty_like(log_rows)
    log_sums = np.empty(64 * num_slots, dtype=np.float32)
    following = first
    while True:
        # Rows that have ended make room for the next.
        num_going = 0
        for slot in range(num_slots):
            row = rows[slot]
            if row >= 0 and (times[row] >= ends[row] or bad_frames[row] >= 0):
                if carries:
                    begun[row] = True
                    for part in range(num_parts):
                        for j in range(size):
                            carried_states[part, row, j] = states[part, slot, j]
                    for d in range(width):
                        carried_predictions[row, d] = predictions[slot, d]
                row = -1
            if row < 0:
                while following < last and (times[following] >= ends[following] or bad_frames[following] >= 0):
                    following += 1
                if following < last:
                    row = following
                    following += 1
                    if carries and begun[row]:
                        for part in range(num_parts):
                            for j in range(size):
                                states[part, slot, j] = carried_states[part, row, j]
                        for d in range(width):
                            predictions[slot, d] = carried_predictions[row, d]
                    else:
                        for part in range(num_parts):
                            for j in range(size):
                                states[part, slot, j] = start[part, j]
                        for d in range(width):
                            predictions[slot, d] = predictions[num_slots, d]
            rows[slot] = row
            if row >= 0:
                going[num_going] = slot
                num_going += 1
        if num_going == 0:
            break

        lines = 0
        for i in range(num_going):
            slot = going[i]
            row = rows[slot]
            begins[slot] = lines
            for time in range(times[row], min(times[row] + window, ends[row])):
                join_inputs(frames, row, time, predictions, slot, joined, lines, activation)
                lines += 1
        _head(lines, joined, head, head_bias, logits)
        if separate_blank:  # so that a softmax over all classes gives the blank its sigmoid
            for line in range(lines):
                _, normaliser = normaliser_of(logits, line, 0, blank)
                logits[line, blank] += normaliser

        num_emitting = 0
        for i in range(num_going):
            slot = going[i]
            row = rows[slot]
            for w in range(window):
                tokens[slot, w] = -1
            n = num_emitting
            at[n], said[n], lasting[n], normalisers[n], duration_log_probs[n] = _follow_blanks(
                logits, begins[slot], min(window, ends[row] - times[row]), blank, classes, durations,
                row, times, symbols, acoustic_scores, bad_frames, slot, tokens, moves,
            )  # fmt: skip
            if at[n] >= 0:
                emitting[n] = slot
                num_emitting += 1

        if ilm_weight != 0.0 and num_emitting:
            for i in range(num_emitting):
                join_inputs(frames, 0, -1, predictions, emitting[i], joined, i, activation)
            _head(num_emitting, joined, head, head_bias, internal)
        for i in range(num_emitting):
            slot, internal_normaliser = emitting[i], np.float32(0.0)
            row, line = rows[slot], begins[slot] + at[i]
            if ilm_weight != 0.0:
                internal[i, blank] = -np.inf
                _, internal_normaliser = normaliser_of(internal, i, 0, classes)
            own = said[i]
            said[i], lasting[i], chain = _choose(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                logits, line, internal, i, internal_normaliser, own, lasting[i],
                duration_log_probs[i] - normalisers[i], blank, classes, vocab_size, max_symbols, ilm_weight,
                row, weights, times, symbols, lm_states, acoustic_scores, lm_scores, ilm_scores, fused, one, chain,
            )  # fmt: skip
            tokens[slot, at[i]], moves[slot, at[i]] = said[i], lasting[i]
            if measure >= 0:  # of the model's own choice
                sums[i] = sum_for_confidence(logits, line, classes, normalisers[i], own, measure, alpha)

        # The steps of this turn.
        if count + num_going * window > log_rows.size:
            log_rows, log_tokens = _grown(log_rows), _grown(log_tokens)
            log_moves, log_sums = _grown(log_moves), _grown(log_sums)
        emission = 0
        for i in range(num_going):
            slot = going[i]
            for w in range(window):
                if tokens[slot, w] >= 0:
                    log_rows[count], log_tokens[count], log_moves[count] = rows[slot], tokens[slot, w], moves[slot, w]
                    log_sums[count] = 0.0
                    if tokens[slot, w] != blank:
                        log_sums[count] = sums[emission]
                        emission += 1
                    count += 1
        if num_emitting:
            used = _predict(
                num_emitting, emitting, said, embedding, layers, convolution, convolution_bias, size, projection,
                projection_bias, hidden, cell, predictions, places, table, used, inputs, gates, below, projected,
            )  # fmt: skip
    # What was borrowed from must last until here.
    kept = (
        states_room.size + start_room.size + predictions_room.size + inputs_room.size + gates_room.size + below_room.size
        + projected_room.size + table_room.size + joined_room.size + logits_room.size + internal_room.size + fused_room.size
        + one_room.size + steps_room.size + integers_room.size + singles_room.size + places_room.size
    )  # fmt: skip
    return log_rows[:count], log_tokens[:count], log_moves[:count], log_sums[:count], kept


@compiled
def _grown(array):
    return np.concatenate((array, np.empty_like(array)))
