"""Parts of the workload `recommend`: logs of clicks, blocks, models, losses, metrics and a generator."""
