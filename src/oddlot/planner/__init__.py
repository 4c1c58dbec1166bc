"""What a plan will take and cost."""
