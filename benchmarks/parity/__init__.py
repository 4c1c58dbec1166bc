"""Training with oddlot against the plain PyTorch loop that it replaces."""
