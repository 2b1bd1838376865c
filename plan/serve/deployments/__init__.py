"""Deployments: their latencies and power, by physics first and by what measured ones taught."""
