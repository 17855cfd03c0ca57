"""What is made of finished runs: their numbers read back, scores and statistics of them, figures and pages."""
