"""Analyses of trained agents: how they act, what their predictions hold, and how bsuite scores them."""
