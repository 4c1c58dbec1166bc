"""The mesh: every worker is a peer with a model, a strategy and a log of its own, and there is no hub."""
