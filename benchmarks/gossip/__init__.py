"""Benchmarks of gossip with and without adaptive communication."""
