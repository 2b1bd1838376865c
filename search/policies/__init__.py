"""Reinforcement learning: policies that propose configurations, and their environments."""
