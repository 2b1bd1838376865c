"""Anything with knobs as a kernel: a Python function, a source file, a program."""
