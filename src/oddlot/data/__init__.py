"""Access to training data: batches, shards and seeding."""
