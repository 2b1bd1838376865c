"""The gate: compares two revisions of a project by their benchmarks."""
