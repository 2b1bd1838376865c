"""Measures a machine in detail: its caches, rates and overheads, beyond what a predictor needs."""
