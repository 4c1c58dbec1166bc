"""What a machine is, for the simulator: its speed, its moods, its link, its price, how long it stays."""
