"""What a run needs before it is paid for: `pretrainkit plan`."""
