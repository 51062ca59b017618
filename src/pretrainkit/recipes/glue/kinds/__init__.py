"""What examples of each kind of task are, and how answers to them are judged. Torch-free."""
