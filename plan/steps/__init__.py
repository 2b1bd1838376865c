"""Step times of a serving engine, learned from what it logged."""
