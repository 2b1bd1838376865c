"""Tuning anything in one call: a function, a source file, a program; using what was chosen."""
