"""The local engine: worker processes on this machine."""
