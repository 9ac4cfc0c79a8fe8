"""Greedy transducer search with language models for batches, by looping over labels (Bataev et al., "Label-Looping", SLT 2024).

The prediction network runs once for each label, not for each frame. And since its output doesn't change until the next
label, the joint network runs on a block of coming frames at once: the search follows the blanks (and their durations)
inside the block, so that the loop turns about once for each label. Rows that have ended are left out of the batch.

Where several classes or durations score the same the first one is chosen.

On the CPU, a transducer of the usual kind (see `networks`) is run by the native core as a whole.

`reference`, `cpu` and `gpu` each have a `Search`, a `hf_ngpulm.search.networks.search.TransducerSearch`.
"""
