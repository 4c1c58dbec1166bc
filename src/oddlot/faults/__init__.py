"""Fault injection: plans of faults, and what carries them out on any engine."""
