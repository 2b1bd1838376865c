"""How a check says what is wrong."""

from foretune.errors import ForetuneError


class BrokenContract(ForetuneError, AssertionError):
    """An implementation does not do what its seam promises."""


def must(holds: object, otherwise: str) -> None:
    """Do nothing if something holds.

    Raises:
        BrokenContract: it does not; the message is ``otherwise``.
    """
    if not holds:
        raise BrokenContract(otherwise)
