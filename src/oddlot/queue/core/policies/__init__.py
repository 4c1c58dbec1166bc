"""Policies of the queue, one idea a file."""
