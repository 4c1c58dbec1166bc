"""Engines: the only code that reads clocks, opens sockets, starts processes or waits."""
