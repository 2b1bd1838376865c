"""Processes of the judge that start at once: in this process, or forked from it.

A worker of the judge imports its libraries, which takes seconds. A forked one has them already, and
what it does to itself does not reach the test.
"""

import multiprocessing
import os
import signal
import traceback

from foretune.collect import answers
from foretune.errors import ForetuneError, MeasurementError, describe_error


class SameProcess:
    """An implementation in this process, which starts at once; others need a second each."""

    def __init__(self, factory, advice=None):
        self.factory = factory
        self.implementation = None

    def call(self, method, *arguments, limit_s):
        self.implementation = self.implementation or self.factory()
        try:
            return getattr(self.implementation, method)(*arguments)
        except ForetuneError:
            raise
        except Exception as e:
            raise MeasurementError(describe_error(e)) from e

    def close(self):
        self.implementation = None

    def pause(self):
        pass

    def resume(self):
        pass


class ForkedProcess:
    """An implementation in a process that is forked from this one; it answers with data."""

    def __init__(self, factory, advice=None):
        self.factory = factory
        self.process = None

    def call(self, method, *arguments, limit_s):
        if self.process is None:
            context = multiprocessing.get_context("fork")
            self.connection, other = context.Pipe()
            self.process = context.Process(target=serve, args=(self.factory, other), daemon=True)
            self.process.start()
            other.close()
        self.connection.send((method, arguments))
        if not self.connection.poll(limit_s):
            self.close()
            raise TimeoutError
        try:
            answer = answers.decode(self.connection.recv_bytes())
        except (EOFError, OSError, ValueError) as e:
            self.close()
            raise ChildProcessError("the process died") from e
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def pause(self):
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self):
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGCONT)

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = None


def serve(factory, connection):
    """Answer calls of methods until the connection closes."""
    served = None
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            served = served or factory()
            answer = getattr(served, method)(*arguments)
        except ForetuneError as e:
            answer = e
        except Exception as e:
            answer = MeasurementError(describe_error(e))
        try:
            connection.send_bytes(answers.encode(answer))
        except answers.UnreadableAnswer as e:
            traceback.print_exc()
            connection.send_bytes(answers.encode(MeasurementError(str(e))))
