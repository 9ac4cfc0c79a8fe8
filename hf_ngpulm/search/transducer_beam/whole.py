"""Beam search with networks of the usual kind: all steps of a batch in one compiled call for each thread.

A few rows are searched at a time, so that each product of matrices serves their hypotheses and what it gives is still near when
the search reads it; when a row has ended, the next one takes its place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ...automaton.compiled import borrowed, compiled
from ..networks.cpu_networks import all_borrowed, convolve, join_inputs, lstm_cell, normaliser_of
from ..networks.cpu_products import Layer, product
from ..networks.networks import ACTIVATIONS, TransducerNetworks
from .loops import open_of, search_rows, work_space

HYPOTHESES = 48  # that go on at once, about


class Networks(NamedTuple):
    """The weights of a transducer's networks as the loops read them: valid as long as the weights are what they are.

    Args:
        embedding: `[V, E]`.
        inputs, input_biases: of the LSTM's first layer what it makes of inputs, both its biases with that, as `Layer` has them.
        recurrent, no_biases: of hidden states, and zeros.
        above, above_biases: of each layer above, one behind the other, what it makes of inputs and hidden states.
        convolution, convolution_bias: `[H, K]` and `[H]`, see `TransducerNetworks`.
        projection, projection_biases, head, head_biases: as `Layer` has them.
        num_layers, size, width: layers, their cells, and the size of predictions.
        separate_blank, activation: see `TransducerNetworks`.
    """

    embedding: np.ndarray
    inputs: np.ndarray
    input_biases: np.ndarray
    recurrent: np.ndarray
    no_biases: np.ndarray
    above: np.ndarray
    above_biases: np.ndarray
    convolution: np.ndarray
    convolution_bias: np.ndarray
    projection: np.ndarray
    projection_biases: np.ndarray
    head: np.ndarray
    head_biases: np.ndarray
    num_layers: int
    size: int
    width: int
    separate_blank: bool
    activation: int

    @classmethod
    def of(cls, networks: TransducerNetworks) -> Networks:
        """They are read anew with each call, since weights may change between two."""
        first, above = networks.layers[:1], networks.layers[1:]
        none = np.zeros(0, dtype=np.float32)
        inputs = [Layer.of(layer.weight_ih, layer.bias_ih + layer.bias_hh) for layer in first] or [Layer(none, none)]
        recurrent = [Layer.of(layer.weight_hh, torch.zeros_like(layer.bias_hh)) for layer in first] or [Layer(none, none)]
        both = [
            Layer.of(torch.cat([layer.weight_ih, layer.weight_hh], 1), layer.bias_ih + layer.bias_hh) for layer in above
        ]  # fmt: skip
        return cls(
            networks.embedding.numpy(), *inputs[0], *recurrent[0],
            np.concatenate([none, *(layer.panels for layer in both)]),
            np.concatenate([none, *(layer.biases for layer in both)]),
            networks.convolution.contiguous().numpy(), networks.convolution_bias.numpy(),
            *Layer.of(networks.projection, networks.projection_bias), *Layer.of(networks.head, networks.head_bias),
            len(networks.layers), networks.projection.shape[1], len(networks.projection), networks.separate_blank,
            ACTIVATIONS.index(networks.activation),
        )  # fmt: skip


@compiled
def begin_rows(rows, slots_of_row, blank, networks, states, predictions, ilm_weight, lines, classes):
    """Put what is predicted before the first token into the first slot of some rows; what LMs say is in `lines` already."""
    if rows.size == 0:
        return 0
    begin, num_layers, embedding = rows[0] * slots_of_row, networks[13], networks[0]
    for part in range(states.shape[0]):
        for j in range(states.shape[2]):
            # Before the first token there is nothing, or there are blanks.
            states[part, begin, j] = np.float32(0.0) if num_layers else embedding[blank, j]
    # (As literals they would be types of their own, for which all would be compiled anew.)
    one, none = np.int64(1), np.int64(0)
    room = _room(networks, one)
    new = np.empty((3, 1), np.int64)
    new[0, 0], new[1, 0], new[2, 0] = begin, blank, begin
    places, table = np.full(embedding.shape[0], -1, np.int64), np.empty((1, room[2].shape[1]), np.float32)
    _predict(one, new, networks, states, predictions, places, table, none, room)
    for row in rows:
        slot = row * slots_of_row
        if slot != begin:
            for part in range(states.shape[0]):
                for j in range(states.shape[2]):
                    states[part, slot, j] = states[part, begin, j]
            for d in range(predictions.shape[1]):
                predictions[slot, d] = predictions[begin, d]
        if ilm_weight != 0.0:
            new[2, 0] = slot
            _subtract_ilm(one, new, networks, predictions, ilm_weight, lines, classes, blank, room)
    return len(room)


@compiled
def run_rows(
    first, last, automaton, frames, reaches, of_rows, rules, beam, places, trace, networks, states, predictions, ilm_weight
):  # fmt: skip
    """Search each row as far as its frames reach; whether the room for steps was too small for any.

    Args:
        automaton, of_rows, rules, beam, trace: see `search_rows`.
        frames: float32 `[B, T, D]`.
        reaches: int64 `[B]`, see `hf_ngpulm.search.transducer_beam.cpu.Search.run_on`.
        places: int64 `[B, K]`, room.
        states, predictions: float32 `[P, N, H]` and `[N, D]` by slot.
    """
    automaton, of_rows, beam, trace = all_borrowed(automaton), all_borrowed(of_rows), all_borrowed(beam), all_borrowed(trace)
    networks, frames, reaches, places = all_borrowed(networks), borrowed(frames), borrowed(reaches), borrowed(places)
    states, predictions = borrowed(states), borrowed(predictions)
    lengths, limits, phases = of_rows[0], of_rows[1], of_rows[2]
    used, longest_trace = trace[0], trace[1].shape[0]
    scores, times, slots = beam[0], beam[2], beam[8]
    blank, classes, aes_steps = rules[1], rules[2], rules[4]
    separate_blank, activation = networks[16], networks[17]
    num_beams, slots_of_row = places.shape[1], beam[13].shape[1]
    held = max(1, min(HYPOTHESES // num_beams, last - first))

    owned_space, owned_room = work_space(rules, beam), _room(networks, held * num_beams)
    owned = (
        np.empty((held * num_beams, networks[15]), np.float32), np.empty((held * num_beams, networks[12].size), np.float32),
        np.empty((networks[0].shape[0] if networks[13] else 0, owned_room[2].shape[1]), np.float32),
        np.full(networks[0].shape[0], -1, np.int64), np.empty(held, np.int64), np.empty(num_beams, np.int64),
        np.empty((3, held * num_beams), np.int64),
    )  # fmt: skip
    space, room = all_borrowed(owned_space), all_borrowed(owned_room)
    joined, logits, table, in_table, rows, opened, new = all_borrowed(owned)
    in_use = np.int64(0)

    num_rows, following, lacks_room = np.int64(0), first, False
    while True:
        lines = i = np.int64(0)
        while i < held:
            if i == num_rows:
                if following == last:
                    break
                rows[i] = following
                following += 1
                num_rows += 1
            row = rows[i]
            count = open_of(row, num_beams, scores, times, limits[row], reaches[row], opened)
            while count == 0 and aes_steps and limits[row] < lengths[row]:  # the next frame
                limits[row] += 1
                phases[row] = 0
                count = open_of(row, num_beams, scores, times, limits[row], reaches[row], opened)
            steps = num_beams + 1 if aes_steps and phases[row] == 0 else 1
            if count == 0 or used[row] + steps > longest_trace:
                lacks_room |= count > 0
                num_rows -= 1
                rows[i] = rows[num_rows]
                continue
            for k in range(num_beams):
                places[row, k] = -1
            for k in opened[:count]:
                places[row, k] = lines
                slot = row * slots_of_row + slots[row, k]
                join_inputs(frames, row, times[row, k], predictions, slot, joined, lines, activation)
                lines += 1
            i += 1
        if num_rows == 0:
            break
        _join(lines, joined, networks, logits, separate_blank, blank)
        count = search_rows(rows, num_rows, automaton, logits, places, of_rows, rules, beam, trace, space, new, np.int64(0))
        for i in range(num_rows):
            phases[rows[i]] += 1
        if count:
            in_use = _predict(count, new, networks, states, predictions, in_table, table, in_use, room)
            if ilm_weight != 0.0:
                _subtract_ilm(count, new, networks, predictions, ilm_weight, beam[11], classes, blank, room)
    kept = len(owned_space) + len(owned_room) + len(owned)  # what was borrowed from must last until here
    return lacks_room, kept


@compiled
def _room(networks, count):
    """Room for `_predict` (embeddings, hidden states, gates, inputs above, outputs, predictions) and `_subtract_ilm`."""
    embedding, gates, num_layers, size, width = networks[0], networks[4].size, networks[13], networks[14], networks[15]
    return (
        np.empty((count, embedding.shape[1]), np.float32), np.empty((count, size), np.float32),
        np.empty((count, gates), np.float32), np.empty((count, 2 * size if num_layers > 1 else 0), np.float32),
        np.empty((count, size), np.float32), np.empty((count, networks[10].size), np.float32),
        np.empty((count, width), np.float32), np.empty((count, networks[12].size), np.float32),
    )  # fmt: skip


@compiled
def _join(count, joined, networks, logits, separate_blank, blank):
    product(joined, networks[11], networks[12], logits, count)
    if separate_blank:  # so that a softmax over all classes gives the blank its sigmoid
        for line in range(count):
            _, normaliser = normaliser_of(logits, line, 0, blank)
            logits[line, blank] += normaliser


@compiled
def _predict(count, new, networks, states, predictions, in_table, table, used, room):
    """The prediction network, one token on: `new[:, :count]` are the slots of states, tokens, and slots for the new ones.

    What the LSTM's first layer makes of a token is kept in `table`, at `in_table[token]` (-1 for nothing); `used` is the number
    of its lines.

    Returns:
        The number of lines in `table`.
    """
    embedded, before, gates, both, below, projected, _, _ = room
    embedding, inputs, input_biases, recurrent, no_biases, above, above_biases, convolution, convolution_bias = networks[:9]
    num_layers, size, width = networks[13:16]
    sources, tokens, targets = new
    if num_layers:
        fresh = 0
        for i in range(count):
            if in_table[tokens[i]] < 0:
                in_table[tokens[i]] = used + fresh
                for e in range(np.uintp(embedding.shape[1])):
                    embedded[fresh, e] = embedding[tokens[i], e]
                fresh += 1
        if fresh:
            product(embedded, inputs, input_biases, table[used : used + fresh], fresh)
            used += fresh
        hidden, cells, block = states[:num_layers], states[num_layers:], gates.shape[1]
        for layer in range(num_layers):
            if layer == 0:
                for i in range(count):
                    for j in range(np.uintp(size)):
                        before[i, j] = hidden[layer, sources[i], j]
                product(before, recurrent, no_biases, gates, count)
                for i in range(count):
                    line = in_table[tokens[i]]
                    for j in range(np.uintp(4 * size)):
                        gates[i, j] += table[line, j]
            else:
                for i in range(count):
                    for j in range(np.uintp(size)):
                        both[i, j], both[i, size + j] = below[i, j], hidden[layer, sources[i], j]
                at, panel = (layer - 1) * block, 2 * size * block
                product(both, above[(layer - 1) * panel : layer * panel], above_biases[at : at + block], gates, count)
            for i in range(count):
                for j in range(np.uintp(size)):
                    cells[layer, targets[i], j] = cells[layer, sources[i], j]
                lstm_cell(gates, i, hidden, cells, layer, targets[i], below)
    else:
        convolve(count, sources, tokens, targets, embedding, convolution, convolution_bias, states, below)
    product(below, networks[9], networks[10], projected, count)
    for i in range(count):
        for d in range(np.uintp(width)):
            predictions[targets[i], d] = projected[i, d]
    return used


@compiled
def _subtract_ilm(count, new, networks, predictions, weight, lines, classes, blank, room):
    """Subtract the internal LM's scores behind new tokens from what LMs add."""
    joined, logits = room[6], room[7]
    no_frames = predictions.reshape(1, predictions.shape[0], predictions.shape[1])
    for i in range(count):
        join_inputs(no_frames, 0, -1, predictions, new[2, i], joined, i, networks[17])
    _join(count, joined, networks, logits, False, blank)
    for i in range(count):
        logits[i, blank] = -np.inf
        _, normaliser = normaliser_of(logits, i, 0, classes)
        for label in range(classes):
            if label != blank:
                lines[new[2, i], label] -= weight * (logits[i, label] - normaliser)
