"""A run from `fit` to its result."""
