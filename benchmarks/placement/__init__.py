"""Placing a chain of operators on devices, or in precisions, as sequential decisions."""
