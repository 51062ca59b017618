"""Projects from raw data: proposal, files of the project, and its run."""
