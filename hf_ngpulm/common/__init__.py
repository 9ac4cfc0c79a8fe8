"""Provide helpers that all packages use, for arguments, batches, files, progress bars and bundled files."""
