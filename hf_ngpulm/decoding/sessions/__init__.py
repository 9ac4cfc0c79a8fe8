"""Decoding of rows that come in pieces, one file per family of decoders."""
