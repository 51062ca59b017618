"""What is made for GPUs."""
