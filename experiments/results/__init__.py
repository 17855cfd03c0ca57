"""Results of finished runs: their numbers read back, scores, statistics, figures and pages."""
