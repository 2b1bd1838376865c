"""Recorded spaces, and searchers replayed on them."""
