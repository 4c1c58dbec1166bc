"""Estimates of time and cost."""
