"""An engine in steps: scheduler, queue, batches in flight, stages of a pipeline."""
