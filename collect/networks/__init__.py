"""Networks exported by ``torch.export``: their operators, and the time of each on this machine."""
