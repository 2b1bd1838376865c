"""Families of kernels that other tools measure: what their work is, and what matters about it."""
