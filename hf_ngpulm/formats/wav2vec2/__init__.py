"""Repositories of `Wav2Vec2ProcessorWithLM`."""
