"""Recorded spaces, and the replay of searchers on them."""
