"""Starting the processes of a run. One file per way to start them: `local` (this machine, through torchrun's agent).

A scheduler or a cloud gets a file of its own beside it, with a function that takes the same arguments and returns the
same exit code. Whatever starts the processes, each runs `pretrainkit.launch.rank`, and each learns its place from
torchrun's environment variables, which `pretrainkit.dist.env.init_world` reads. Importing this room imports no torch.
"""
