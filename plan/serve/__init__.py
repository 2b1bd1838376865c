"""Plans serving deployments: candidates, predictions, the plan, launch commands."""
