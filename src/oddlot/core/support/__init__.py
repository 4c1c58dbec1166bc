"""Support code without knowledge of runs: errors, text, serialization and validation."""
