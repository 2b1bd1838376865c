"""Saved predictors: folders, names, shipped predictors."""
