"""Latency and power of deployments: analytic, corrected with measured deployments."""
