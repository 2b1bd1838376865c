"""What a few runs on a new device teach a trained predictor."""
