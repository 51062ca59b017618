"""Many fine-tunings of one encoder: what to run, which of them counts, tables and a submission to the leaderboard."""
