"""Hosts on one machine: each has its own network address, processes, name and shared memory.

    with Network(folder, names=("alpha", "beta")) as network:
        alpha = network.start("alpha")
        beta = network.start("beta")
        alpha.run("ping", "-c", "1", "beta")
        network.cut_power("beta")

A host is a set of Linux namespaces, which its first process holds. They end with that process, and
it ends with this one, so no network, mount or process is left, even if this process is killed. The
hosts see each other, and the machine's files. They have no route to anything else.

Needs root, and the programs of the Debian packages iproute2 and util-linux.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

SUBNET = "10.77.0"
PREFIX_BITS = 24
MEMORY = "400m"
"""Size of a host's shared memory, which also holds its temporary files."""
PROGRAMS = ("ip", "unshare", "nsenter", "setpriv")
START_TIMEOUT_S = 10.0
FIRST_PROCESS = ("env", "--ignore-signal=CHLD", "sleep", "infinity")
"""Holds a host's namespaces. As it ignores the end of its children, the kernel removes them."""


def missing() -> str | None:
    """Return why there can be no hosts here; None if there can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return f"needs {', '.join(absent)}: apt-get install iproute2 util-linux"
    probe = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "probe", "type", "veth"],
        capture_output=True,
        text=True,
    )
    if probe.returncode:
        return f"this machine makes no network namespaces: {probe.stderr.strip()}"
    return None


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float) -> Any:
    """Return the first true value of ``condition``; raise TimeoutError if there is none in time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(f"after {timeout_s:.0f} s: {what}")


class Host:
    """Namespaces, held by their first process: of the network, or of everything."""

    def __init__(self, name: str, namespaces: Sequence[str]) -> None:
        self.name = name
        # The first process ends if `unshare` ends, and that if this process ends.
        die_with_parent = ["setpriv", "--pdeathsig", "KILL"]
        unshare = ["unshare", *namespaces, "--pid", "--mount-proc", "--fork", "--kill-child"]
        self._unshare = subprocess.Popen([*die_with_parent, *unshare, *FIRST_PROCESS])
        self.first_process = wait_for(self._find_first_process, f"{name} starts", START_TIMEOUT_S)

    def start(self, *command: str | Path, **options: Any) -> subprocess.Popen[Any]:
        """Start a command on this host; ``options`` are those of `subprocess.Popen`."""
        return subprocess.Popen(self._entering(command), **options)

    def run(self, *command: str | Path, **options: Any) -> str:
        """Run a command on this host and return its output.

        Raises RuntimeError with the output of a command that fails.
        """
        done = subprocess.run(self._entering(command), capture_output=True, text=True, **options)
        if done.returncode:
            words = " ".join(map(str, command))
            raise RuntimeError(f"{self.name}: {words}: {done.stdout}{done.stderr}")
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """Return the host's processes, except its first one."""
        found = []
        here = os.readlink(f"/proc/{self.first_process}/ns/pid")
        for process in psutil.process_iter():
            try:
                is_here = os.readlink(f"/proc/{process.pid}/ns/pid") == here
            except OSError:
                continue  # it has ended
            if is_here and process.pid != self.first_process:
                found.append(process)
        return found

    def kill(self) -> None:
        """End all processes of this host at once, and so its namespaces."""
        self._unshare.kill()
        self._unshare.wait()

    def _find_first_process(self) -> int | None:
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        for child in map(int, children.read_text().split()):
            if Path(f"/proc/{child}/comm").read_text().strip() == FIRST_PROCESS[2]:
                return child
        return None

    def _entering(self, command: Sequence[str | Path]) -> list[str]:
        here = ["nsenter", "--target", str(self.first_process), "--all", f"--wd={os.getcwd()}"]
        return [*here, *map(str, command)]


class Network:
    """Hosts called ``names`` on one switch; ``folder`` gets the file with their addresses."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.addresses = {name: f"{SUBNET}.{i}" for i, name in enumerate(names, start=1)}
        self.hosts: dict[str, Host] = {}
        self._hosts_file = folder / "hosts"
        lines = [f"{address} {name}\n" for name, address in self.addresses.items()]
        self._hosts_file.write_text("127.0.0.1 localhost\n" + "".join(lines))

    def __enter__(self) -> Self:
        self._switch = Host("switch", ["--net"])
        self._switch_ip("add", "bridge", "type", "bridge")
        self._switch_ip("set", "bridge", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for host in [*self.hosts.values(), self._switch]:
            host.kill()

    def start(self, name: str) -> Host:
        """Switch a host on and connect it."""
        host = Host(name, ["--net", "--uts", "--ipc", "--mount"])
        self.hosts[name] = host
        host.run("hostname", name)
        host.run("mount", "--bind", self._hosts_file, "/etc/hosts")
        host.run("mount", "-t", "tmpfs", "-o", f"size={MEMORY}", "tmpfs", "/dev/shm")

        # A cable: one end is the host's, the other one, called as the host, is in the switch.
        self._switch_ip("add", name, "type", "veth", "peer", "name", "eth0")
        self._switch_ip("set", "eth0", "netns", str(host.first_process))
        self._switch_ip("set", name, "master", "bridge", "up")
        address = f"{self.addresses[name]}/{PREFIX_BITS}"
        host.run("ip", "address", "add", address, "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        host.run("ip", "link", "set", "lo", "up")
        return host

    def unplug(self, name: str) -> None:
        """Disconnect a host: it works on, and nothing of it arrives elsewhere."""
        self._switch_ip("set", name, "down")

    def plug(self, name: str) -> None:
        """Connect a host again."""
        self._switch_ip("set", name, "up")

    def cut_power(self, name: str) -> None:
        """End a host without a word: others see that it is silent, not that it closed."""
        self._switch_ip("delete", name)
        self.hosts.pop(name).kill()

    def _switch_ip(self, *arguments: str) -> None:
        """Run ``ip link`` in the switch's network, with the numbers of processes as here."""
        network = f"--net=/proc/{self._switch.first_process}/ns/net"
        subprocess.run(["nsenter", network, "ip", "link", *arguments], check=True)
