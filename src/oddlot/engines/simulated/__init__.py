"""A simulated fleet under a virtual clock."""
