"""Traces: logs of jobs that a cluster has run."""
