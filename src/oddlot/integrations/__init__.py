"""Connections to trackers and other libraries. Each imports its library on first use."""
