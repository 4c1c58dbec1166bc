"""Clocks, loops and ports: the only rooms that read a clock, open a pipe, start a process or wait."""
