"""The Ray engine: workers on many machines, as actors of a Ray cluster."""
