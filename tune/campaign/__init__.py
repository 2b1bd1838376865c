"""The campaign: one MLflow-tracked tuning job over many problems."""
