"""Servers start, fail with a reason, and leave nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from served_toys import processes_of, toy_server, toy_words

from foretune.errors import UsageError
from foretune.plan.prove.failures import explain_exit
from foretune.plan.prove.server import (
    ServerCommand,
    ServerFailed,
    ServerProcess,
    free_port,
    is_healthy,
    is_port_free,
    served_model,
)

LIMIT_S = 60.0
TOY_FOLDER = Path(__file__).parents[2] / "toy"


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_server_serves_and_leaves_no_process(tmp_path):
    server = toy_server(tmp_path, "--children", "2")
    port = server.command.port
    with server:
        server.wait_until_healthy(LIMIT_S)
        assert server.started_s > 0
        assert served_model(server.url) == "toy"
        assert server.memory_gib() > 0
        assert not is_port_free(port)
        assert len(processes_of(port)) == 4  # guard, server, and two children in other sessions
    assert processes_of(port) == []
    assert is_port_free(port)
    assert server.log.read_text().startswith("$ ")


def test_server_stops_when_block_fails(tmp_path):
    server = toy_server(tmp_path)
    with pytest.raises(RuntimeError), server:
        raise RuntimeError
    assert processes_of(server.command.port) == []


def test_server_that_ignores_sigterm_is_killed(tmp_path):
    port = free_port()
    program = (
        "import signal, time, http.server\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"http.server.HTTPServer(('127.0.0.1', {port}), http.server.SimpleHTTPRequestHandler)"
        ".serve_forever()"
    )
    command = ServerCommand([sys.executable, "-c", program], port=port)
    with ServerProcess(command, tmp_path / "log", grace_s=0.2):
        wait_until(lambda: not is_port_free(port), "it listens")
    assert is_port_free(port)


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        ("start", "it ended with status 1: ValueError: the model has a layer that is not known"),
        ("oom", "out of memory: torch.OutOfMemoryError"),
        ("flag", "the engine does not take a flag: toy_server: error: unrecognized"),
    ],
)
def test_server_failed_start_has_reason(tmp_path, fail, reason):
    with toy_server(tmp_path, "--fail", fail) as server:
        with pytest.raises(ServerFailed) as failed:
            server.wait_until_healthy(LIMIT_S)
        assert failed.value.failure.reason.startswith(reason)
        assert failed.value.failure.is_out_of_memory == (fail == "oom")


def test_waiting_for_health_has_a_limit(tmp_path):
    with (
        toy_server(tmp_path, "--fail", "hang-start") as server,
        pytest.raises(ServerFailed, match="did not answer within 0 s"),
    ):
        server.wait_until_healthy(0.3)
    assert processes_of(server.command.port) == []


def test_server_missing_program_has_reason(tmp_path):
    command = ServerCommand(["no-such-engine", "serve"], port=free_port())
    with (
        ServerProcess(command, tmp_path / "log") as server,
        pytest.raises(ServerFailed, match="cannot run no-such-engine"),
    ):
        server.wait_until_healthy(LIMIT_S)


def test_server_port_in_use_is_refused(tmp_path):
    with toy_server(tmp_path) as server:
        server.wait_until_healthy(LIMIT_S)
        other = ServerProcess(server.command, tmp_path / "other.log")
        with pytest.raises(UsageError, match=f"port {server.command.port} is in use"):
            other.start()
        assert is_healthy(server.url)


def test_variables_before_the_program_reach_it(tmp_path):
    port = free_port()
    program = "import os; raise SystemExit('error: SPACE is ' + os.environ['SPACE'])"
    command = ServerCommand(["SPACE=a b", sys.executable, "-c", program], port=port)
    assert str(command).startswith("SPACE='a b' ")
    with (
        ServerProcess(command, tmp_path / "log") as server,
        pytest.raises(ServerFailed, match="SPACE is a b"),
    ):
        server.wait_until_healthy(LIMIT_S)


def test_server_killed_was_out_of_memory(tmp_path):
    assert explain_exit(tmp_path / "none", 137).is_out_of_memory
    assert explain_exit(tmp_path / "none", 1).reason == ("it ended with status 1: its log is empty")


CALLER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # `nohup` ignores it
sys.path.insert(0, {toy!r})
from pathlib import Path
from served_toys import toy_words
from foretune.plan.prove.server import ServerCommand, ServerProcess

command = ServerCommand(toy_words({port}, "--children", "1"), port={port})
server = ServerProcess(command, Path({log!r}), grace_s=2.0)
print("begun", flush=True)
with server:
    print("started", flush=True)
    server.wait_until_healthy(60)
    print("healthy", flush=True)
    import time
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["begun", "started", "healthy"])
def test_server_killed_caller_leaves_no_orphan(tmp_path, number, moment):
    port = free_port()
    program = textwrap.dedent(CALLER).format(
        toy=str(TOY_FOLDER), port=port, log=str(tmp_path / "log")
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as caller:
        while caller.stdout.readline().strip() != moment:
            assert caller.poll() is None
        os.kill(caller.pid, number)
    wait_until(lambda: not processes_of(port), "no process is left")
    assert is_port_free(port)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' signal for a dead parent")
def test_server_killed_guard_ends_server(tmp_path):
    with toy_server(tmp_path) as server:
        server.wait_until_healthy(LIMIT_S)
        assert server._guard is not None
        server._guard.kill()
        wait_until(lambda: is_port_free(server.command.port), "the server ended")


SSH = """#!/bin/sh
# Stands in for ssh: runs the command here. The port is the same, so nothing is forwarded.
for last; do :; done
exec sh -c "$last"
"""


def test_server_on_other_host_ends_with_connection(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    port = free_port()
    command = ServerCommand(["A=1", *toy_words(port)], port=port, host="gpu-box")
    with ServerProcess(command, tmp_path / "log", grace_s=2.0) as server:
        server.wait_until_healthy(LIMIT_S)
    assert processes_of(port) == []


SSHD = """ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
"""
# A daemon per connection, in a network of its own: its 127.0.0.1 is not that of this machine.
OTHER_NETWORK = """#!/bin/sh
exec unshare --net sh -c 'ip link set lo up; exec /usr/sbin/sshd -i -f {folder}/sshd_config'
"""
CONFIG = """Host other-machine
  ProxyCommand {folder}/connect
  IdentityFile {folder}/user_key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


@pytest.fixture
def other_machine(tmp_path, monkeypatch):
    """The name of a host that a real ssh reaches: a network of its own on this machine."""
    programs = ("ssh", "ssh-keygen", "unshare", "ip", "/usr/sbin/sshd")
    missing = [program for program in programs if not shutil.which(program)]
    if missing or sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip(f"needs root on Linux and {', '.join(missing or programs)}")
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(keygen, check=True)
    (tmp_path / "sshd_config").write_text(SSHD.format(folder=tmp_path))
    (tmp_path / "config").write_text(CONFIG.format(folder=tmp_path))
    connect = tmp_path / "connect"
    connect.write_text(OTHER_NETWORK.format(folder=tmp_path))
    connect.chmod(0o755)

    programs_folder = tmp_path / "bin"
    programs_folder.mkdir()
    ssh = programs_folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs_folder}:{os.environ['PATH']}")
    return "other-machine"


@pytest.mark.extended
@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "connection killed"])
def test_server_over_real_ssh_leaves_no_process(tmp_path, other_machine, is_killed):
    port = free_port()
    command = ServerCommand(["A=1", *toy_words(port)], port=port, host=other_machine)
    with ServerProcess(command, tmp_path / "log", grace_s=2.0) as server:
        server.wait_until_healthy(LIMIT_S)
        assert processes_of(port)
        if is_killed:
            assert server._guard is not None
            server._guard.kill()
            wait_until(lambda: processes_of(port) == [], "the server ended")
    wait_until(lambda: processes_of(port) == [], "the server ended")
