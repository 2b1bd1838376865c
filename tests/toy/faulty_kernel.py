"""A kernel whose configurations do what no kernel should do to the process that measures it."""

import os
import signal
import socket
import subprocess
import sys
import time

from toy_kernel import Toy


class Faulty(Toy):
    """Sums ``n`` numbers, and does harm."""

    name = "faulty"

    def build(self, problem, config, inputs):
        behaviour = config["behaviour"]

        def launch():
            result = inputs["x"].sum()
            if behaviour == "poison":  # right the first time, and wrong for all who come after
                inputs["x"][:] = 0.0
                return result
            if behaviour == "fork":
                os.fork()
            if behaviour == "leave a child":
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            if behaviour.startswith("leave a daemon"):
                _start_daemon()
            if behaviour == "leave a daemon and die":
                os.kill(os.getpid(), signal.SIGKILL)
            if behaviour == "write anywhere":
                _write_into_sockets(os.urandom(150))
            if behaviour == "odd text":
                raise ValueError("a name that is no text: \udcff")
            if behaviour == "close and stay":
                _close_sockets()
                time.sleep(600)
            return result

        return launch


DAEMON = "import time; time.sleep(6123)"


def _start_daemon():
    """Fork twice into a new session, as services do, so that nothing leads back here."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", DAEMON])
        os._exit(0)
    os.wait()


def _sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield int(name)
        except OSError:
            continue


def _write_into_sockets(data):
    for number in _sockets():
        os.write(number, data)


def _close_sockets():
    for number in list(_sockets()):
        socket.socket(fileno=number).shutdown(socket.SHUT_RDWR)
