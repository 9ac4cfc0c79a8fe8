"""Audio files and their samples, as recognisers want them."""
