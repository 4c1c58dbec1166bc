"""Checkpoints: their format, the background writer, storage and atomic files."""
