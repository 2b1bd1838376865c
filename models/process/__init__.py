"""The Gaussian process."""
