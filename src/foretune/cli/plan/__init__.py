"""``foretune plan``: deployments of language models, planned without a GPU."""
