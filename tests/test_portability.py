"""Tests that the product imports on macOS and Windows, which this suite has not run on.

What only POSIX or only Linux has is imported in functions, and called where it is known to exist.
The lists below are what was looked at: a new call needs a guard, and then an entry.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("collect", "datasets", "features", "models", "plan", "search", "src", "tune")

POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
POSIX_NAMES = {
    "os": {
        "WIFEXITED",
        "WIFSIGNALED",
        "WNOHANG",
        "WTERMSIG",
        "chown",
        "fchmod",
        "fork",
        "getgid",
        "getloadavg",
        "getpgrp",
        "getuid",
        "killpg",
        "memfd_create",
        "mkfifo",
        "nice",
        "pipe2",
        "posix_spawn",
        "register_at_fork",
        "sched_getaffinity",
        "sched_setaffinity",
        "setsid",
        "statvfs",
        "sysconf",
        "uname",
        "wait4",
    },
    "signal": {
        "SIGALRM",
        "SIGCHLD",
        "SIGCONT",
        "SIGHUP",
        "SIGKILL",
        "SIGSTOP",
        "SIGUSR1",
        "SIGUSR2",
        "alarm",
        "pthread_sigmask",
        "setitimer",
        "sigtimedwait",
        "sigwait",
    },
    "socket": {"AF_UNIX"},
    "select": {"epoll", "poll"},
}
"""Module -> names that Windows lacks."""

GUARDED = {
    # Compares in turn, in one process, where processes cannot be forked.
    "collect/forked_comparison.py": {
        "os.WIFSIGNALED",
        "os.WNOHANG",
        "os.WTERMSIG",
        "os.fork",
        "signal.SIGCONT",
        "signal.SIGKILL",
        "signal.SIGSTOP",
    },
    # Threads are not pinned elsewhere.
    "collect/kernels/numba_codegen.py": {"os.sched_getaffinity", "os.sched_setaffinity"},
    "collect/machine_load.py": {"os.sched_getaffinity"},
    "collect/side_effects.py": {"os.nice", "os.sched_getaffinity"},
    "collect/state_guard.py": {"os.sched_getaffinity", "os.sched_setaffinity"},
    # `fork_worker` returns at once where there is no Linux; the rest asks for `os.name`.
    "collect/worker_process.py": {
        "os.WIFEXITED",
        "os.WIFSIGNALED",
        "os.WNOHANG",
        "os.WTERMSIG",
        "os.fork",
        "os.getpgrp",
        "os.killpg",
        "os.register_at_fork",
        "os.setsid",
        "os.sysconf",
        "signal.SIGCHLD",
        "signal.SIGCONT",
        "signal.SIGKILL",
        "signal.SIGSTOP",
        "signal.pthread_sigmask",
        "signal.sigtimedwait",
        "socket.AF_UNIX",
    },
    # Without a timer, values are drawn without a time limit.
    "collect/wrapped/new_values.py": {"signal.SIGALRM", "signal.setitimer"},
    # Not guarded: `plan prove` starts servers that run on Linux only.
    "plan/prove/guard.py": {"os.WNOHANG", "os.killpg", "signal.SIGHUP", "signal.SIGKILL"},
    "src/foretune/cli/tool_server.py": {"os.killpg"},
    "src/foretune/device.py": {"os.sched_getaffinity"},
    # It says that it needs POSIX.
    "tune/gate/agent_process.py": {"os.killpg", "signal.SIGKILL"},
    "tune/gate/agent/server.py": {"os.register_at_fork"},
    "tune/store/database.py": {"os.register_at_fork"},
    "tune/store/fallible.py": {"os.register_at_fork"},
    "tune/triton/online.py": {"os.register_at_fork"},
}
"""File -> the names of `POSIX_NAMES` that it uses, each where it is known to exist."""


def modules() -> list[Path]:
    """Return the product's files; `src/foretune` has links to the other folders."""
    files = []
    for folder in FOLDERS:
        files += (
            path
            for path in (ROOT / folder).rglob("*.py")
            if folder != "src" or not _is_in_link(path)
        )
    return files


def _is_in_link(path: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if parent != ROOT)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield the top names of the modules that ``tree`` imports, not inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        else:
            yield from imports_of(node)


def posix_names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = node.value.id
            if node.attr in POSIX_NAMES.get(module, ()):
                yield f"{module}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in POSIX_NAMES:
            for alias in node.names:
                if alias.name in POSIX_NAMES[node.module]:
                    yield f"{node.module}.{alias.name}"


def test_modules_of_posix_are_imported_in_functions():
    files = modules()
    assert len(files) > 300
    wrong = {
        path.relative_to(ROOT).as_posix(): sorted(POSIX_MODULES & {*imports_of(parsed(path))})
        for path in files
    }
    assert {path: names for path, names in wrong.items() if names} == {}


def test_calls_of_posix_are_those_with_guards():
    used = defaultdict(set)
    for path in modules():
        names = {*posix_names_in(parsed(path))}
        if names:
            used[path.relative_to(ROOT).as_posix()] |= names
    assert dict(used) == GUARDED


WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, socket, sys
import numba, optuna, pandas, psutil, scipy.stats, sklearn.gaussian_process  # their own affair

for name in {names}:
    module, _, attribute = name.partition(".")
    module = sys.modules.get(module)
    if hasattr(module, attribute):
        delattr(module, attribute)
MISSING = ("torch", "triton", "helion", "flashinfer", "gymnasium", "ray", "mlflow", "cuda", "mcp")
for name in (*{modules}, *MISSING):
    sys.modules[name] = None  # an import of it fails

import foretune

count = 0
for module in pkgutil.walk_packages(foretune.__path__, "foretune."):
    try:
        importlib.import_module(module.name)
        count += 1
    except foretune.ForetuneError:
        pass  # an extra is missing
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in MISSING:
            raise
print(count)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="removes what only POSIX has")
def test_product_imports_without_posix():
    """The names are taken away before the product is imported, in a process of its own."""
    names = [f"{module}.{name}" for module, all_names in POSIX_NAMES.items() for name in all_names]
    # Python's own modules need the first two here; the last one is behind `sys.platform`.
    kept = ("os.sysconf", "os.uname", "signal.SIGCHLD")
    removed = [name for name in names if name not in kept]
    code = WITHOUT_POSIX.format(names=sorted(removed), modules=sorted({"fcntl", "pwd", "resource"}))
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 250
