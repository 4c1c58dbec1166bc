"""Tensors at work: the layout of a model's numbers, the store that merges updates, rules, checkpoints."""
