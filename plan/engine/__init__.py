"""Step-level simulator of a serving engine: scheduler, queue, batches, pipeline stages."""
