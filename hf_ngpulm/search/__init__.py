"""Searches. Each package defines an operation and has its reference and its engines for CPU and GPU."""
