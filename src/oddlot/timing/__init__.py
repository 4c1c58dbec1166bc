"""Models of response times, and what is fitted to measured ones."""
