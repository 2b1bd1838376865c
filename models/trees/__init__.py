"""Trees: boosted, forests, and how rows go through them."""
