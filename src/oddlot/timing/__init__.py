"""Models of response times, and their fits to measured times."""
