"""Training with tensors: the layout of a model's parameters, the store that merges updates, and optimizers."""
