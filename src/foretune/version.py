"""The version, where modules find it without importing the whole package's names."""

__version__ = "0.1.0"
