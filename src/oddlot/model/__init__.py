"""The weights at the hub: their layout in memory, merges, optimizers and checks of updates."""
