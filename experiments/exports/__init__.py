"""Files that run a rule in the code of others."""
