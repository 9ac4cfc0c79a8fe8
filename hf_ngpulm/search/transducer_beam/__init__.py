"""Beam search for transducers with language models: ALSD++ (RNN-T and TDT) and AES++ (RNN-T).

Both searches (Grigoryan et al., "Pushing the Limits of Beam Search Decoding for Transducer-based ASR models", arXiv 2506.00185)
keep `num_beams` hypotheses. A hypothesis is a token sequence at a frame; alignments of the same tokens up to the same frame are
merged. Scores are comparable only between hypotheses with equal progress. The two searches measure progress differently:

- ALSD (alignment-length synchronous decoding, Saon et al., ICASSP 2020): after step i every hypothesis has i = t + u symbols: t
  blanks and u tokens. The frontier is a diagonal of the lattice: with more tokens a hypothesis is at an earlier frame. Each
  step is one batch of the joint network. The number of steps is at most the number of frames plus tokens.
- AES (adaptive expansion search, Kim et al., "Accelerating RNN Transducer Inference via Adaptive Expansion Search", IEEE SPL
  2020): all hypotheses are at the same frame. At this frame, each hypothesis takes up to `aes_steps` tokens and then a blank.
  A class extends a hypothesis if its score is within `aes_gamma` of the best class's score. If the model is certain, few
  classes extend a hypothesis, which saves time.

The order that breaks ties is part of the definition. Classes are ordered by their ids, and the durations of a class have the
model's order. Beams are sorted. Hypotheses are ordered first by the places from which their best alignments come, then by the
order of the extensions of the same place.

With LM weights w and their sum W, blank-aware scoring gives a token and the blank the scores

    log p(token) + W * log(1 - p(blank)) + sum of w * LM(token)    and    (1 + W) * log p(blank)

These scores assume that the LM gives the blank the model's own probability, and divides the remaining probability among the
tokens. Otherwise tokens would have an LM cost and the blank would have none, so transcripts would lose words. Without
blank-aware scoring the scores are log p(token) + sum of w * LM(token) and log p(blank). A subtracted internal LM is one more
LM, with a negative weight. The weights of phrases aren't included in W, because bonuses aren't log-probabilities. In a TDT the
log-probability of the duration is added.

The modules `reference`, `cpu` and `gpu` each define a `Search`, derived from
`hf_ngpulm.search.networks.search.TransducerSearch`.
"""

from __future__ import annotations

FIRST_HASH = 0x2545F491  # hash of the empty token sequence
