"""Fixtures of the decorator's tests."""

from decorator_fixtures import autotune, autotuner_class, device, driver, tensors, triton_settings

__all__ = ["autotune", "autotuner_class", "device", "driver", "tensors", "triton_settings"]
