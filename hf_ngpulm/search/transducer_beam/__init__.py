"""Beam search for transducers, with language models fused in: ALSD++ (RNN-T and TDT) and AES++ (RNN-T).

Both searches (Grigoryan et al., "Pushing the Limits of Beam Search Decoding for Transducer-based ASR models", arXiv 2506.00185)
keep `num_beams` hypotheses, token sequences at a frame. In ALSD (after Saon et al., ICASSP 2020) every hypothesis takes one
step at a time, blank or token, so that all have taken equally many. In AES (after Kim et al., "Accelerating RNN Transducer
Inference via Adaptive Expansion Search", IEEE SPL 2020) all are at the same frame, where each takes up to `aes_steps` tokens.
Ways that lead to the same tokens at the same frame are one hypothesis.

The order of what scores the same is part of the definition, too: a hypothesis's classes by their ids, the durations of a class
as the model has them, and hypotheses by the places that their best ways come from (those of a beam are in order, the best
first), then by the order of what extends them there.

For a step of a hypothesis with the LM's weights w and their sum W the scores are, with blank-aware scoring,

    log p(token) + W * log(1 - p(blank)) + sum of w * LM(token)    and    (1 + W) * log p(blank)

as if the LM gave the blank the model's own probability, and without it log p(token) + sum of w * LM(token) and log p(blank). An
internal LM that is subtracted is one more LM with a negative weight; automata that boost phrases have no part in W, since what
they add are no log-probabilities. In a TDT the log-probability of the duration comes on top.

`reference`, `cpu` and `gpu` each have a `Search`, a `hf_ngpulm.search.networks.search.TransducerSearch`.
"""

from __future__ import annotations

FIRST_HASH = 0x2545F491  # of no tokens
