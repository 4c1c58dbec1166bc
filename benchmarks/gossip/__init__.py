"""Gossip with and without adaptive communication."""
