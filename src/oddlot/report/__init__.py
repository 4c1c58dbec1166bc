"""What a run's folder tells afterwards, or while it goes on."""
