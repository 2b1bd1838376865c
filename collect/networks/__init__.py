"""Networks exported by ``torch.export``: their operators, and how long each takes here."""
