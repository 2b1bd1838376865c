"""Reinforcement learning: policies that propose configurations, and where they learn."""
