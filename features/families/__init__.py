"""Kernel families known by their run-table columns: their cost and features."""
