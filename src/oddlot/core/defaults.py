"""Defaults of run settings that classes below `oddlot.run` share."""

MAX_UPDATE_RATIO = 1000.0
"""Largest norm of an update that is accepted, relative to the running median."""
KEEP_CHECKPOINTS = 3
"""Number of newest checkpoints to keep."""
