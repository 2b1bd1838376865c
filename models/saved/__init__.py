"""Predictors on disk, and those that come along."""
