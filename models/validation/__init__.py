"""Validation of predictors: splits, metrics, baselines, drift."""
