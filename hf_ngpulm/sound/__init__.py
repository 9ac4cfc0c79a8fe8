"""Read audio files into the samples that recognisers take."""
