"""Does everything work that needs a GPU? Pass or fail, item by item, in two minutes.

    PYTHONPATH=src python benchmarks/gpu/smoke.py --out smoke.jsonl
    PYTHONPATH=src python benchmarks/gpu/smoke.py --replay        # no GPU: runs through, compiles
    PYTHONPATH=src python benchmarks/gpu/smoke.py --minutes 0 --out smoke.jsonl    # prints a file

Every item runs in a separate process with a time limit, so none stops another. All processes start
at once and wait for their turn; only one is timed at a time. Rows are written to ``--out`` at once.

With ``--replay`` nothing is launched and nothing is compared, but Triton really compiles for
``--device``. With TRITON_CACHE_DIR set, a GPU of that kind then finds its programs there
(`torch.compile`, CUDA sources, and the small C modules that launch programs aside).
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("benchmarks", "benchmarks/gpu", "examples/kernels", "tests/replay_gpu")
)

import torch
import triton
from machine import markdown
from smoke_items import ITEMS
from smoke_rows import REAL, Run, append, rows_of

from foretune.collect.kernels import triton_gemm
from foretune.collect.versions import versions
from foretune.errors import ForetuneWarning

HERE = Path(__file__).resolve()
READY_S = 30.0
"""What is waited for processes to import everything and to reach the device."""
GRACE_S = 10.0
"""What an item that has begun may take after the time is over."""
TURNS = (("1",), ("2",), ("2b", "3", "4", "5", "6", "10", "8", "12"), ("7",), ("9",), ("11",))
"""What runs at the same time: times matter where an item is alone."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("smoke.jsonl"))
    parser.add_argument("--minutes", type=float, default=2.0, help="begin nothing new after them")
    parser.add_argument("--items", nargs="*", default=list(ITEMS), choices=list(ITEMS))
    parser.add_argument("--replay", action="store_true", help="no GPU: compile, launch nothing")
    parser.add_argument("--device", default="NVIDIA H100 80GB HBM3", help="to compile for")
    parser.add_argument("--child", choices=list(ITEMS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Run(options.child, options.out, options.folder))
    if options.minutes <= 0 and not options.out.exists():
        raise SystemExit(f"there is no file {options.out}")
    if options.minutes > 0:
        if options.replay == REAL:
            raise SystemExit("--replay is for machines without a GPU, and all that these can do")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.unlink(missing_ok=True)
        device = f"replay of {options.device}" if options.replay else torch.cuda.get_device_name()
        append(options.out, {"item": "", "device": device, "versions": versions()})
        with tempfile.TemporaryDirectory() as folder:
            (replay if options.replay else run_items)(options, Path(folder))
    print(report(options))


def perform(run: Run) -> None:
    """Run an item, and write down that it came to its end."""
    run.start = time.monotonic()
    programs = Counter[bool]()
    triton.knobs.compilation.listener = lambda **now: programs.update([bool(now["cache_hit"])])
    with run.checking("all"):
        if REAL or ITEMS[run.item].replayed:
            ITEMS[run.item].function(run)
        else:
            run.check("all", True, "not replayed")
    run.check("programs", True, f"{programs[False]} compiled, {programs[True]} found in the cache")
    run.check("end", True, "")


def child(run: Run) -> None:
    """Get ready, wait for the turn, run an item, and end this process."""
    torch.zeros(1, device="cuda")
    if run.item != "12":  # which may say that other processes are busy
        warnings.simplefilter("error", ForetuneWarning)  # falling back would be no result
    (run.folder / f"ready-{run.item}").touch()
    if sys.stdin.readline():
        perform(run)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that still compile do not count


def replay(options: argparse.Namespace, folder: Path) -> None:
    """Run the items here, on a device that launches nothing."""
    from replay_driver import ReplayDriver

    driver: Any = ReplayDriver(lambda launch: 0.1, device=options.device, compile=True)
    interface = driver.device_interface
    real = triton_gemm.device_limits
    limits = triton_gemm.Limits(
        shared_bytes=interface.target.limits.shared_bytes_per_cta,
        threads=32,
        cores=int(interface.device.specs["cores"]),
        reads_shared=True,
    )
    for module in list(sys.modules.values()):
        if getattr(module, "device_limits", None) is real:
            setattr(module, "device_limits", lambda: limits)  # noqa: B010
    with driver.active(), warnings.catch_warnings():
        warnings.simplefilter("error", ForetuneWarning)
        for item in options.items:
            perform(Run(item, options.out, folder, driver))
            driver.launches.clear()


def run_items(options: argparse.Namespace, folder: Path) -> None:
    """Start a process per item, and let them run in turns."""
    deadline = time.monotonic() + 60 * options.minutes
    turns = [[item for item in turn if item in options.items] for turn in TURNS]
    processes = {item: start(options, folder, item) for turn in turns for item in turn}
    until = time.monotonic() + READY_S
    while time.monotonic() < until and any(
        process.poll() is None and not (folder / f"ready-{item}").exists()
        for item, process in processes.items()
    ):
        time.sleep(0.05)
    for turn in turns:
        if (began := time.monotonic()) > deadline:
            break
        for item in turn:
            with suppress(OSError):  # it has ended already, and says why
                processes[item].stdin.write("go\n")
                processes[item].stdin.flush()
        for item in turn:
            last = min(began + ITEMS[item].limit_s, deadline + GRACE_S)
            finish(options.out, folder, item, processes[item], last)
    for process in processes.values():
        kill(process)


def start(options: argparse.Namespace, folder: Path, item: str) -> Any:
    """Start the process of an item; it waits for its turn."""
    environment = {**os.environ, "FORETUNE_STORE": str(folder / f"store-{item}.db")}
    environment.setdefault("FORETUNE_CACHE", str(folder / "cache"))
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    if item == "7":
        environment["CUDA_VISIBLE_DEVICES"] = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    command = [
        sys.executable,
        str(HERE),
        "--child",
        item,
        "--out",
        str(options.out.resolve()),
        "--folder",
        str(folder),
    ]
    with (folder / f"log-{item}").open("w") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )


def finish(out: Path, folder: Path, item: str, process: Any, until: float) -> None:
    """Wait for a process; write a row if it failed."""
    try:
        code = process.wait(max(0.1, until - time.monotonic()))
        failed = f"it ended with {code}" if code else ""
    except subprocess.TimeoutExpired:
        failed = "it took too long"
    kill(process)
    if failed:
        log = (folder / f"log-{item}").read_text(errors="replace")[-6000:]
        append(out, {"item": item, "what": "end", "ok": False, "detail": failed, "log": log})


def kill(process: Any) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def report(options: argparse.Namespace) -> str:
    """Return a table of items, and every row that is not right."""
    table = []
    details = []
    for name in options.items:
        rows = rows_of(options.out, name)
        checks = [r for r in rows if r["what"] != "end"]
        ends = [r for r in rows if r["what"] == "end"] or [{"ok": False, "detail": "no end"}]
        passed = bool(checks) and all(r["ok"] for r in [*checks, *ends])
        table.append(
            [
                name,
                ITEMS[name].title,
                "PASS" if passed else "FAIL",
                f"{sum(r['ok'] for r in checks)} of {len(checks)}",
                f"{ends[-1]['seconds']:.1f}" if "seconds" in ends[-1] else "–",
            ]
        )
        details += [
            f"{'ok  ' if r['ok'] else 'FAIL'} {name:>2} {r['what']}: {r['detail']}" for r in checks
        ]
        details += [f"FAIL {name:>2} {r['detail']}" for r in ends if not r["ok"]]
    (head,) = rows_of(options.out, "")
    columns = ["item", "what", "result", "right", "seconds"]
    return "\n".join(
        [
            *details,
            "",
            "### What only a GPU can show",
            "",
            f"{head['device']}; {head['versions']}",
            "",
            markdown(columns, table),
        ]
    )


if __name__ == "__main__":
    main()
