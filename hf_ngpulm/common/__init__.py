"""Provide what all packages use: checks of arguments, batches, files, progress bars, bundled files."""
