"""Checking plans by measuring: operators on this machine, and vLLM where it runs."""
