"""The planner: predicted against measured times, and momentum tuned to the number of groups."""
