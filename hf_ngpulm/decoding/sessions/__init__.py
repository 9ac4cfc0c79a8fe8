"""Decode rows whose frames come in pieces; each family of decoders has its own file."""
