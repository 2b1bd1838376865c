"""The version, importable without the package's names."""

__version__ = "0.2.0"
