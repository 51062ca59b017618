"""What is kept of a run, and read again."""
