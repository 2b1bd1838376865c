"""The version, importable without the package's names."""

__version__ = "0.1.0"
