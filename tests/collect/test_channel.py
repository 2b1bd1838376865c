"""Messages over a socket into which others write."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.collect.channel import _HEADER, Channel

KEY = b"a secret"


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    with one, other:
        yield Channel(one, KEY), Channel(other, KEY), one


def test_messages_keep_numbers_and_contents(ends):
    here, there, _ = ends
    here.send(3, {"x": [1.5, "é"]})
    here.send(2**40, b"\0" * 200)
    assert there.receive(1) == (3, {"x": [1.5, "é"]})
    assert there.receive(1) == (2**40, b"\0" * 200)


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_what_is_no_message_is_skipped(before, content, after):
    one, other = socket.socketpair()
    with one, other:
        here, there = Channel(one, KEY), Channel(other, KEY)
        one.sendall(before)
        here.send(1, content)
        one.sendall(after)
        here.send(2, "next")
        assert there.receive(1) == (1, content)
        assert there.receive(1) == (2, "next")


def test_a_message_that_was_cut_is_skipped(ends):
    here, there, sock = ends
    mark = here._mark
    sock.sendall(mark + _HEADER.pack(1, 500, 0) + b"a part of it")
    sock.sendall(mark + _HEADER.pack(1, 2**63, 0))
    here.send(2, "whole")
    assert there.receive(1) == (2, "whole")


def test_waits_are_bounded(ends):
    here, there, sock = ends
    with pytest.raises(TimeoutError):
        there.receive(0.01)
    sock.sendall(here._mark + struct.pack(">Q", 1))
    with pytest.raises(TimeoutError):
        there.receive(0.01)
    with pytest.raises(TimeoutError):
        here.send(1, b"\0" * 10_000_000, 0.05)  # nobody takes it
    here.close()


def test_who_is_gone_is_noticed(ends):
    here, there, _ = ends
    here.close()
    with pytest.raises(EOFError):
        there.receive(1)


def test_who_does_not_know_the_secret_is_not_heard(ends):
    _, there, sock = ends
    Channel(sock, b"another").send(1, "hello")
    with pytest.raises(TimeoutError):
        there.receive(0.05)
