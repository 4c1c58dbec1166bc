"""Predictions of the durations of jobs."""
