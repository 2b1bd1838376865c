"""Other projects' searchers, run by their own code."""
