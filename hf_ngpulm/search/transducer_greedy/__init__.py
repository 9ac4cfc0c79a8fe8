"""Greedy transducer search with language models for batches, by label looping (Bataev et al., "Label-Looping: Highly Efficient
Decoding for Transducers", SLT 2024, arXiv 2406.06220).

The usual loop runs over frames, and a batch calls the prediction network at every frame at which any row has a token. Here the
outer loop runs over labels: the prediction network runs once per label, for all rows together. The prediction is constant until
the next label, so the joint network can process a window of the next frames at once. An inner step skips all blanks in the
window (in a TDT by their durations) up to the first token. Rows are then at different frames but at the same label.

In a tie, the first class or duration wins.

On the CPU the native core also runs the networks if they are of the usual kind (see `networks`).

The modules `reference`, `cpu` and `gpu` each define a `Search`, derived from
`hf_ngpulm.search.networks.search.TransducerSearch`.
"""
