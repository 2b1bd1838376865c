"""The campaign: one job that tunes many problems of a kernel."""
