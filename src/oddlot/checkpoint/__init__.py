"""Checkpoints: their format, the background writer, storage and files that are written whole or not at all."""
