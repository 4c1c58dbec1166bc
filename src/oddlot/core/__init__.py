"""The core: events, commands, strategies and the conductor. Standard library only."""
