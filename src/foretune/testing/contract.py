"""The error of the contract checks."""

from foretune.errors import ForetuneError


class ContractViolation(ForetuneError, AssertionError):
    """An implementation violates the contract of its interface."""


def ensure(condition: object, message: str) -> None:
    """Raise ContractViolation with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ContractViolation(message)
