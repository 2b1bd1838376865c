"""One rank of a `plan_parallel.ranks.RankGroup`: joins the others, then answers.

Run as ``python -m plan_parallel.rank_process PIPE RANK RANKS FILE SECONDS PARENT``.
"""

import contextlib
import os
import sys
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from foretune.collect.worker_process import become_worker
from foretune.errors import ForetuneError, MeasurementError


def serve(pipe: int, rank: int, ranks: int, meeting: str, limit_s: float, parent: int) -> None:
    """Answer (method of `Rank`, arguments) with its result, or with the error it raised."""
    become_worker(parent)
    connection: Connection[Any, Any] = Connection(pipe)
    with connection, contextlib.suppress(EOFError, OSError):
        _pin(rank, ranks)
        try:
            work = _join(rank, ranks, meeting, limit_s)
        except Exception as e:
            connection.send(_to_foretune_error(e))
            return
        connection.send(None)
        while True:
            method, arguments = connection.recv()
            try:
                answer = getattr(work, method)(*arguments)
            except Exception as e:
                answer = _to_foretune_error(e)
            connection.send(answer)


def _join(rank: int, ranks: int, meeting: str, limit_s: float) -> Any:
    import torch
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        raise MeasurementError(
            f"torch {torch.__version__} was built without torch.distributed and gloo: "
            "install one from pytorch.org to check parallel layouts"
        )
    from plan_parallel.rank_work import Rank

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=limit_s),
    )
    return Rank(rank, ranks)


def _to_foretune_error(error: Exception) -> ForetuneError:
    if isinstance(error, ForetuneError):
        return error
    text = str(error).strip().partition("\n")[0]
    return MeasurementError(f"a rank failed: {type(error).__name__}: {text}")


def _loopback() -> str:
    """Return the interface of this machine with itself: hosts' own names may lead nowhere."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return "lo"


def _pin(rank: int, ranks: int) -> None:
    """Give every rank separate cores (Linux; elsewhere the scheduler decides)."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= ranks:
            os.sched_setaffinity(0, cores[rank * len(cores) // ranks :][: len(cores) // ranks])


if __name__ == "__main__":
    _pipe, _rank, _ranks, _meeting, _limit_s, _parent = sys.argv[1:]
    serve(int(_pipe), int(_rank), int(_ranks), _meeting, float(_limit_s), int(_parent))
