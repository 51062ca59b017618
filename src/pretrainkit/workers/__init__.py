"""Tasks on this machine, SLURM or Ray."""
