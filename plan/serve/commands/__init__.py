"""The commands that start a deployment: a file per engine."""
