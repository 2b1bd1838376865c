"""Guides: predict the configurations of one search, and know how far to trust themselves."""
