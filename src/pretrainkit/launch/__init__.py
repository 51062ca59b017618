"""Start the processes of a run, with a module for each launcher: `local`, `slurm`, `cloud`. Every process runs
`pretrainkit.launch.rank` and gets its rank from torchrun's environment variables, which `dist.env` reads."""
