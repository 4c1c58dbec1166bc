"""Extreme multi-label classification: its text format, its metrics, sets like the published ones."""
