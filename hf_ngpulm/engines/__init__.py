"""Engines that run the same operation: reference, CPU, GPU."""
