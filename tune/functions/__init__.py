"""Tunes functions, source files and programs in one call; looks up choices."""
