"""Runs: their command line, folder, checkpoints and log, how an agent is trained in one, and several runs at a time."""
