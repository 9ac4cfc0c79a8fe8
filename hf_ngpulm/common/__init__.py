"""What every package uses: arguments, batches, files, progress, bundled files."""
