"""Provide what every package uses: arguments, batches, files, progress, bundled files."""
