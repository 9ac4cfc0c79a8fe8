"""Read and write file formats of language models. Each format has a module."""
