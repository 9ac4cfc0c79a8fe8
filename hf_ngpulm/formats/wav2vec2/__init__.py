"""Read repositories of `Wav2Vec2ProcessorWithLM`."""
