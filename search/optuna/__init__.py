"""Optuna: its samplers as searchers, and the surrogate as a sampler."""
