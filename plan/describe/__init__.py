"""Inputs of a plan: models, formats, systems, layouts, request lengths."""
