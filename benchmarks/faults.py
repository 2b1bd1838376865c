"""What faults cost: rows lost, rows twice, rows of others spoilt, and seconds to recover.

python benchmarks/faults.py [--kills 100] [--times 10] [--seed 0]

Two kinds. A collection is killed (SIGKILL) at random moments and started again until it is done:
what it reported as measured must be in the table, once. And configurations harm the process that
measures them (`tests/toy/faulty_kernel.py`, `toy_kernel.py`), each between two that are fine: the
harm must stay in its own row. "Lost" counts rows that were reported and are gone, or good
configurations without a good row; "left" counts processes that are still there when the runner is
closed. Recovering is from the fault to the next good row.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).parents[1] / "tests" / "toy"))

COLUMNS = ("fault", "times", "lost", "twice", "left", "seconds to recover")
CONFIGS = 400
PLAIN = ("hang", "die", "wrong", "no build", "no run")
FAULTY = (
    "poison",
    "fork",
    "leave a child",
    "leave a daemon",
    "leave a daemon and die",
    "write anywhere",
    "odd text",
    "close and stay",
)
"""What a configuration does: those of the toy kernel, and those that harm their process."""
LIMIT_S = 2.0


def collect(path: Path) -> None:
    """Measure what the table at ``path`` lacks; print each configuration once its row is kept."""
    from toy_kernel import DEVICE, FakeRunner, Toy, config

    from foretune.datasets import RunLog

    kernel = Toy()
    runner = FakeRunner()
    problem = kernel.problem(n=100)
    with RunLog(path, DEVICE) as log:
        print("open", flush=True)
        for work in range(1, CONFIGS + 1):
            wanted = config("ok", work=work)
            if log.find((kernel.name, DEVICE.name, problem, wanted)) is None:
                log.append(next(runner.run(kernel, problem, [wanted])))
                time.sleep(0.002)
            print(work, flush=True)


def killed_collections(kills: int, seed: int) -> list[str]:
    """Return the table's row of collections that are killed."""
    from foretune.datasets import read_runs

    rng = random.Random(seed)
    lost = 0
    twice = 0
    done = 0
    seconds: list[float] = []
    while done < kills:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "runs.parquet"
            reported = set()
            finished = False
            while not finished:
                begun = time.perf_counter()
                command = [sys.executable, __file__, "--collect", str(path)]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                    assert process.stdout is not None
                    assert process.stdout.readline() == "open\n"
                    seconds.append(time.perf_counter() - begun)
                    if done < kills:
                        time.sleep(rng.uniform(0.0, 0.5))
                        process.kill()
                        done += 1
                    reported |= {int(line) for line in process.stdout if line.endswith("\n")}
                finished = process.returncode == 0
                found = read_runs(path)["config.work"] if reported else []
                lost += len(reported - set(map(int, found)))
                twice += len(found) - len(set(found))
    return row("collection killed (SIGKILL)", done, lost, twice, 0, seconds)


def harmful_configurations(harm: str, times: int) -> list[str]:
    """Return the table's row of a configuration that harms who measures it."""
    from faulty_kernel import Faulty
    from toy_kernel import DEVICE, Toy, config

    from foretune.collect import IsolatedRunner, Timing

    kernel = Faulty() if harm in FAULTY else Toy()
    seconds = list[float]()
    lost = 0
    problem = kernel.problem(n=100)
    before = started_processes()
    with IsolatedRunner(
        DEVICE, Timing(max_seconds=0.02, warmup_s=0.002), limit_s=LIMIT_S
    ) as runner:
        next(runner.run(kernel, problem, [config("ok")]))
        for _ in range(times):
            next(runner.run(kernel, problem, [config(harm)]))
            begun = time.perf_counter()
            after = [config("ok", work=3 + i) for i in range(2)]
            rows = runner.run(kernel, problem, after)
            lost += not next(rows).ok
            seconds.append(time.perf_counter() - begun)
            lost += not next(rows).ok
    left = len(started_processes() - before)
    return row(f"configuration: {harm}", times, lost, 0, left, seconds)


def started_processes() -> set[int]:
    """Return the processes that measure, and those that harmful configurations start."""
    marks = ("foretune.collect.worker_process", "import time; time.sleep(6")
    return {
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(mark in " ".join(process.info["cmdline"] or []) for mark in marks)
    }


def row(name: str, times: int, lost: int, twice: int, left: int, seconds: list[float]) -> list[str]:
    """Return the cells of one fault."""
    took = f"{statistics.median(seconds):.2f} (at most {max(seconds):.2f})"
    return [name, str(times), str(lost), str(twice), str(left), took]


def main() -> None:
    """Inject the faults and print the table."""
    from machine import heading, markdown

    from foretune.collect import local_device

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--times", type=int, default=10, help="runs of each harmful configuration")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.collect:
        collect(given.collect)
        return
    rows = [killed_collections(given.kills, given.seed)]
    rows += [harmful_configurations(harm, given.times) for harm in (*PLAIN, *FAULTY)]
    print(heading("Faults", local_device("cpu")))
    print(markdown(COLUMNS, rows))
    sys.exit(any(cells[2:5] != ["0"] * 3 for cells in rows))


if __name__ == "__main__":
    main()
