"""VC-ASGD on machines that come and go: see `__main__`."""
