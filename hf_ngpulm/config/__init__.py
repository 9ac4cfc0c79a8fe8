"""Read and write a language model's `config.json`."""
