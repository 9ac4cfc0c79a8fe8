"""The networks of transducers: predictions, joint."""
