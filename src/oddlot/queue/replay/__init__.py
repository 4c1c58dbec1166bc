"""Replays of a trace under other policies, on simulated machines."""
