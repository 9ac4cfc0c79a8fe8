"""Decode rows whose frames arrive in pieces. Each family of decoders has its own file."""
