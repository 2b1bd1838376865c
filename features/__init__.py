"""Features: a run as named float columns, the input of a model."""
