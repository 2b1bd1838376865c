"""Chooses hardware: the cheapest mix of GPUs for a demand, and servers in a power budget."""
