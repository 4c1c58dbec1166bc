"""The vocabulary and the books: events in, actions out. Standard library only."""
