"""Figures of the job queue."""
