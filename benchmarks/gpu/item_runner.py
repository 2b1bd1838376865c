"""Runs items, each in a process of its own with a time limit: pass, fail, or not installed.

What `smoke` and `tools` share. All processes start at once and wait for their turn. Rows are
written at once, to a file of JSON lines. Without a GPU, items run here, on a replayed device.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from machine import markdown
from smoke_rows import REAL, Run, append, rows_of

from foretune.collect.kernels import triton_gemm
from foretune.collect.versions import versions
from foretune.errors import ForetuneWarning

READY_S = 30.0
"""What is waited for processes to import everything and to reach the device."""
GRACE_S = 10.0
"""What an item that has begun may take after the time is over."""
NOT_INSTALLED = "not installed"


@dataclass(frozen=True)
class Item:
    """Something to check.

    Attributes:
        title: what it checks.
        function: checks it, and writes rows.
        limit_s: the most seconds it may take.
        replayed: whether a part of it runs without a GPU.
        may_warn: whether Foretune's warnings are no errors.
    """

    title: str
    function: Callable[[Run], None]
    limit_s: float
    replayed: bool = True
    may_warn: bool = False


def no_variables(name: str) -> dict[str, str]:
    """Return no variables: the usual environment of an item's process."""
    return {}


@dataclass(frozen=True)
class ItemList:
    """Items, and how they run.

    Attributes:
        script: the file that is started for each item.
        title: heading of the table.
        items: items by name.
        turns: names of items that run at the same time: times matter where an item is alone.
        minutes: default of ``--minutes``.
        replay_device: default of ``--device``.
        variables: environment variables of an item's process, by its name.
        table: prints the rows of items in a file, instead of one row per item.
    """

    script: Path
    title: str
    items: Mapping[str, Item]
    turns: Sequence[Sequence[str]]
    minutes: float
    replay_device: str
    variables: Callable[[str], Mapping[str, str]] = no_variables
    table: Callable[[Sequence[str], Path], str] | None = None

    def main(self, description: str, argv: Sequence[str] | None = None) -> None:
        """Run the items as the command line says, and print the table."""
        options = self._parse(description, argv)
        if options.child:
            self._be_child(Run(options.child, options.out, options.folder))
        if options.minutes <= 0 and not options.out.exists():
            raise SystemExit(f"there is no file {options.out}")
        if options.minutes > 0:
            self._run(options)
        self._check_file(options.out)
        print((self.table or self.report)(options.items, options.out))

    def _parse(self, description: str, argv: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=description.partition("\n")[0])
        out = Path(f"{self.script.stem}.jsonl")
        names = list(self.items)
        parser.add_argument("--out", type=Path, default=out, help="file of rows, written anew")
        parser.add_argument(
            "--minutes", type=float, default=self.minutes, help="begin nothing new after them"
        )
        parser.add_argument("--items", nargs="*", default=names, choices=names)
        parser.add_argument("--replay", action="store_true", help="no GPU: compile, launch nothing")
        parser.add_argument("--device", default=self.replay_device, help="to compile for")
        parser.add_argument("--child", choices=names, help=argparse.SUPPRESS)
        parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
        return parser.parse_args(argv)

    def _run(self, options: argparse.Namespace) -> None:
        if options.replay == REAL:
            raise SystemExit("--replay is for machines without a GPU, and all that these can do")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.unlink(missing_ok=True)
        device = f"replay of {options.device}" if options.replay else torch.cuda.get_device_name()
        stage = self.script.stem
        head = {"item": "", "stage": stage, "device": device, "versions": versions()}
        append(options.out, head)
        with tempfile.TemporaryDirectory() as folder:
            if options.replay:
                self._replay(options, Path(folder))
            else:
                self._run_in_turns(options, Path(folder))

    def _check_file(self, out: Path) -> None:
        """Refuse a file that has no rows of these items."""
        stage = self.script.stem
        try:
            (head,) = rows_of(out, "")
            is_own = head.get("stage", stage) == stage
        except (ValueError, KeyError, TypeError):
            is_own = False
        if not is_own:
            raise SystemExit(f"{out} is no file of {self.script.name}, or damaged: run it again")

    def _replay(self, options: argparse.Namespace, folder: Path) -> None:
        """Run the items here, on a device that launches nothing."""
        with replayed_device(options.device) as driver, warnings.catch_warnings():
            warnings.simplefilter("error", ForetuneWarning)
            for name in options.items:
                self._perform(Run(name, options.out, folder, driver))
                driver.launches.clear()

    def _run_in_turns(self, options: argparse.Namespace, folder: Path) -> None:
        """Start a process per item, and let them run in turns."""
        deadline = time.monotonic() + 60 * options.minutes
        turns = [[name for name in turn if name in options.items] for turn in self.turns]
        processes = {
            name: self._start(options.out, folder, name) for turn in turns for name in turn
        }
        until = time.monotonic() + READY_S
        while time.monotonic() < until and any(
            process.poll() is None and not (folder / f"ready-{name}").exists()
            for name, process in processes.items()
        ):
            time.sleep(0.05)
        for turn in turns:
            if (began := time.monotonic()) > deadline:
                break
            for name in turn:
                with suppress(OSError):  # it has ended already, and says why
                    processes[name].stdin.write("go\n")
                    processes[name].stdin.flush()
            for name in turn:
                last = min(began + self.items[name].limit_s, deadline + GRACE_S)
                _finish(options.out, folder, name, processes[name], last)
        for process in processes.values():
            _kill(process)

    def _start(self, out: Path, folder: Path, name: str) -> Any:
        """Start the process of an item; it waits for its turn."""
        environment = {**os.environ, "FORETUNE_STORE": str(folder / f"store-{name}.db")}
        environment.setdefault("FORETUNE_CACHE", str(folder / "cache"))
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        environment |= self.variables(name)
        command = [sys.executable, str(self.script), "--child", name]
        command += ["--out", str(out.resolve()), "--folder", str(folder)]
        with (folder / f"log-{name}").open("w") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                start_new_session=True,
            )

    def _be_child(self, run: Run) -> None:
        """Get ready, wait for the turn, run an item, and end this process."""
        torch.zeros(1, device="cuda")
        if not self.items[run.item].may_warn:
            warnings.simplefilter("error", ForetuneWarning)  # falling back would be no result
        (run.folder / f"ready-{run.item}").touch()
        if sys.stdin.readline():
            self._perform(run)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # threads that still compile do not count

    def _perform(self, run: Run) -> None:
        """Run an item, and write down that it came to its end."""
        run.start = time.monotonic()
        programs = Counter[bool]()
        triton.knobs.compilation.listener = lambda **now: programs.update([bool(now["cache_hit"])])
        with run.checking("all"):
            if REAL or self.items[run.item].replayed:
                self.items[run.item].function(run)
            else:
                run.check("all", True, "not replayed")
        found = f"{programs[False]} compiled, {programs[True]} found in the cache"
        run.check("programs", True, found)
        run.check("end", True, "")

    def report(self, names: Sequence[str], out: Path) -> str:
        """Return a table of items, and every row before it."""
        table = []
        details = []
        for name in names:
            rows = rows_of(out, name)
            checks = [r for r in rows if r["what"] != "end"]
            ends = [r for r in rows if r["what"] == "end"] or [{"ok": False, "detail": "no end"}]
            passed = bool(checks) and all(r["ok"] for r in [*checks, *ends])
            is_absent = any(r.get("absent") for r in checks)
            result = NOT_INSTALLED if is_absent else "PASS"
            table.append(
                [
                    name,
                    self.items[name].title,
                    result if passed else "FAIL",
                    f"{sum(r['ok'] for r in checks)} of {len(checks)}",
                    f"{ends[-1]['seconds']:.1f}" if "seconds" in ends[-1] else "–",
                ]
            )
            details += [
                f"{'ok  ' if r['ok'] else 'FAIL'} {name:>2} {r['what']}: {r['detail']}"
                for r in checks
            ]
            details += [f"FAIL {name:>2} {r['detail']}" for r in ends if not r["ok"]]
        (head,) = rows_of(out, "")
        columns = ["item", "what", "result", "right", "seconds"]
        where = f"{head['device']}; {head['versions']}"
        return "\n".join(
            [*details, "", f"### {self.title}", "", where, "", markdown(columns, table)]
        )


@contextmanager
def replayed_device(name: str) -> Iterator[Any]:
    """Yield the active driver of a device that launches nothing; kernels have its limits."""
    from replay_driver import ReplayDriver

    driver: Any = ReplayDriver(lambda launch: 0.1, device=name, compile=True)
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
    with driver.active():
        yield driver


def _finish(out: Path, folder: Path, name: str, process: Any, until: float) -> None:
    """Wait for a process; write a row if it failed."""
    try:
        code = process.wait(max(0.1, until - time.monotonic()))
        failed = f"it ended with {code}" if code else ""
    except subprocess.TimeoutExpired:
        failed = "it took too long"
    _kill(process)
    if failed:
        log = (folder / f"log-{name}").read_text(errors="replace")[-6000:]
        append(out, {"item": name, "what": "end", "ok": False, "detail": failed, "log": log})


def _kill(process: Any) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)
