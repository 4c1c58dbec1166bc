"""TOML files: jobs, fleets and faults, with errors that name the line."""
