"""Starting the processes of a run, a file for each way: `local`, `slurm`, `cloud`. Whatever starts them, each runs
`pretrainkit.launch.rank`, and learns its place from torchrun's environment variables, which `dist.env` reads."""
