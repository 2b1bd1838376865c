"""Measuring on many equal devices at once, on Ray."""
