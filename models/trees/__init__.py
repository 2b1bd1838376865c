"""Tree models, boosted and random forests, and their fast prediction."""
