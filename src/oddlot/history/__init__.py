"""The files of a run and what is computed from them: log, metrics, cost, audit and replay."""
