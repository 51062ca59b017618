"""Many fine-tunings of one encoder: plan, runs, choice of the best, tables and a submission to the leaderboard."""
