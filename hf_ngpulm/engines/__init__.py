"""Choose and call the engines (reference, CPU, GPU), which run the same operations."""
