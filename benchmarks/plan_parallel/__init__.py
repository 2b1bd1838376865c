"""Parallel layouts on this machine's cores: predicted from measured operators, then run."""
