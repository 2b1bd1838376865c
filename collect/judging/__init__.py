"""Implementations to be judged, each in a process of its own."""
