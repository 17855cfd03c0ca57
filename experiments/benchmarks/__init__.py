"""Timing of the programs: what is timed, the processes, other revisions, and the tables."""
