"""File formats of datasets."""
