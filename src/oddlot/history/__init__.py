"""What a run leaves behind: log, folder, metrics, cost, audit, outcome and replay."""
