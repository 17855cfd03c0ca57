"""What `experiments.compare` is made of: the methods that it compares, and the report on them."""
