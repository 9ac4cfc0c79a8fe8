"""What a language model's `config.json` says."""
