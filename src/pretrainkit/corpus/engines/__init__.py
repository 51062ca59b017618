"""Where the tasks of a stage run: this machine, a SLURM cluster, a Ray cluster."""
