"""The files of a run, and results computed from them: log, metrics, cost, audit and replay."""
