"""Searches: each package has an operation's contract, its reference, and its engines for CPU and GPU."""
