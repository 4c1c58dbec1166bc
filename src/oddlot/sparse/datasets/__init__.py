"""Datasets for extreme multi-label classification: text format, metrics, and synthetic data."""
