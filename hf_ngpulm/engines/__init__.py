"""Choose and call the engines (reference, CPU, GPU). All engines run the same operations."""
