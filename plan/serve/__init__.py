"""Deployments that serve: candidates, latencies, the plan, how to run it."""
