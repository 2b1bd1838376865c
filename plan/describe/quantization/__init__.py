"""Number formats of checkpoints: a file for each tool that writes them."""
