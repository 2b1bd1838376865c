"""Proves a plan: starts its server, loads it, compares, and tries better settings."""
