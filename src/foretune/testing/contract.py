"""How a check says what is wrong."""

from foretune.errors import ForetuneError


class BrokenContract(ForetuneError, AssertionError):
    """An implementation does not do what its seam promises."""


def ensure(condition: object, message: str) -> None:
    """Do nothing if something holds.

    Raises:
        BrokenContract: it does not; the message is ``message``.
    """
    if not condition:
        raise BrokenContract(message)
