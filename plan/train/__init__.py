"""Plans the training of language models: parallelism, and time traded for memory."""
