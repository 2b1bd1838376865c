"""Features: what a model sees of a run, as named float columns."""
