"""The scheduler as a pure state machine: events in, commands out. It imports the standard library only."""
