"""Contract checks for implementations of Foretune's interfaces.

Each check takes an implementation and raises `ContractViolation` with the problem. Foretune's tests
run them on everything that is registered.
"""

from typing import TYPE_CHECKING

from foretune.support.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.testing.contract import ContractViolation
    from foretune.testing.drivers import check_loop_driver
    from foretune.testing.kernels import check_kernel
    from foretune.testing.meters import check_meter
    from foretune.testing.regressors import check_regressor
    from foretune.testing.runners import check_runner
    from foretune.testing.searchers import check_searcher

__all__ = [
    "ContractViolation",
    "check_kernel",
    "check_loop_driver",
    "check_meter",
    "check_regressor",
    "check_runner",
    "check_searcher",
]

_MODULE_OF = {
    "ContractViolation": "foretune.testing.contract",
    "check_kernel": "foretune.testing.kernels",
    "check_loop_driver": "foretune.testing.drivers",
    "check_meter": "foretune.testing.meters",
    "check_regressor": "foretune.testing.regressors",
    "check_runner": "foretune.testing.runners",
    "check_searcher": "foretune.testing.searchers",
}
"""Public name -> module that defines it: the imports above, which only type checkers run."""

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__, _MODULE_OF)
