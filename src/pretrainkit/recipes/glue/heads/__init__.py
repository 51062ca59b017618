"""What stands on an encoder for each kind of task, and its loss."""
