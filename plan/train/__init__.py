"""Plans the training of language models: parallelism, and trading time for memory."""
