"""Operators: what a step runs, and how long and at how many watts that takes on a system."""
