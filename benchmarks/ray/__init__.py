"""What the Ray engine costs and saves: see `__main__`."""
