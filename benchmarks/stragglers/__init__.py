"""Stragglers: how many workers to wait for, and how much each is to compute."""
