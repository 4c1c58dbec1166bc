"""The mesh: training without a hub. Every worker is a peer, with its own model, strategy and log."""
