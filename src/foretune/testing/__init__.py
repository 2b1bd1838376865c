"""Whether an implementation keeps the contract of its seam: checks for yours, and for ours.

Each takes an implementation, returns nothing, and raises `BrokenContract` with what is wrong. Our
own tests run them over everything that is registered.
"""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.testing.contract import BrokenContract
    from foretune.testing.drivers import check_loop_driver
    from foretune.testing.kernels import check_kernel
    from foretune.testing.meters import check_meter
    from foretune.testing.regressors import check_regressor
    from foretune.testing.runners import check_runner
    from foretune.testing.searchers import check_searcher

__all__ = [
    "BrokenContract",
    "check_kernel",
    "check_loop_driver",
    "check_meter",
    "check_regressor",
    "check_runner",
    "check_searcher",
]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "contract": ("BrokenContract",),
            "drivers": ("check_loop_driver",),
            "kernels": ("check_kernel",),
            "meters": ("check_meter",),
            "regressors": ("check_regressor",),
            "runners": ("check_runner",),
            "searchers": ("check_searcher",),
        },
    )
