"""Optuna: its samplers as searchers, our search as a sampler."""
