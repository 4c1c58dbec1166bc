"""Common parts of the engines with worker processes: settings, setup, ids, pickling, evaluations and respawning."""
