"""The server of a queue: a database, processes of jobs, an HTTP API with its client, and a page."""
