"""How far off a predictor is: splits, metrics, baselines, drift."""
