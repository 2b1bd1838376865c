"""The version of the features, apart from their code, which takes long to import."""

FEATURES_VERSION = 6
"""Incremented when the same rows give other columns or values; stored with every predictor."""
