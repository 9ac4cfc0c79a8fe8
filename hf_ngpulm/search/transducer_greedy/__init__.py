"""Greedy transducer search with language models for batches, by label looping (Bataev et al., "Label-Looping: Highly Efficient
Decoding for Transducers", SLT 2024, arXiv 2406.06220).

The usual loop runs over frames, and a batch calls the prediction network at every frame at which any row has a token. Here the
outer loop runs over labels: the prediction network runs once per label, for all rows together. Until the next label its output
is constant, so the joint network can look at a window of coming frames at once. An inner step jumps over all blanks in the
window (in a TDT by their durations) to the first token. Rows are then at different frames but at the same label. Rows that have
ended leave the batch.

Ties go to the first class or duration.

On the CPU the native core runs the networks, too, if they are of the usual kind (see `networks`).

`reference`, `cpu` and `gpu` each have a `Search`, a `hf_ngpulm.search.networks.search.TransducerSearch`.
"""
