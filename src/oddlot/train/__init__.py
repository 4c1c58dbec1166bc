"""Training with tensors: the memory layout of models, the computation of updates, and the store that merges them."""
