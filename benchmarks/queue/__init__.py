"""The queue of jobs, measured."""
