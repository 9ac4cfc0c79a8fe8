"""Searches: per operation a contract, a reference, and an engine for each device."""
