"""Run tasks on this machine, SLURM or Ray."""
