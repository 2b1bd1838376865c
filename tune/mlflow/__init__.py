"""MLflow: tracking of campaigns, and predictors as logged models."""
