"""What is wrong: pure functions from a snapshot to signals, verdicts and incidents."""
