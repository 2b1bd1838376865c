"""Loads an OpenAI-compatible server, and times every request.

Prompts are numbers of tokens, so that no tokenizer is needed and lengths are exact. They are random
words of the vocabulary's middle, where no engine keeps special tokens, and differ in every request,
except for a common prefix if the load has one.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foretune.plan.engine.requests import Requests
from foretune.plan.prove.load import Load
from foretune.support.lazy import require

if TYPE_CHECKING:
    import aiohttp

COMPLETIONS = "/v1/completions"
FIRST_WORD_SHARE = 0.25
LAST_WORD_SHARE = 0.75
"""The part of the vocabulary that prompts are drawn from."""
PREFIX_SEED = 0
"""Seed of the common prefix: the same in every run, so that it stays cached."""
DATA = b"data:"
DONE = b"[DONE]"
HTTP_OK = 200
MIN_PATIENCE_S = 1e-3
"""Seconds that a request has after the deadline: no time at all would be no limit."""
MAX_ERROR_CHARACTERS = 200


@dataclass(frozen=True)
class Prompts:
    """Draws prompts for a model.

    Attributes:
        model: the name under which the server serves it.
        vocab: words of its vocabulary.
    """

    model: str
    vocab: int

    def draw(self, isl: int, prefix: int, rng: np.random.Generator) -> list[int]:
        """Return the tokens of a prompt; the first ``prefix`` are the same in all prompts."""
        first = int(FIRST_WORD_SHARE * self.vocab)
        end = max(int(LAST_WORD_SHARE * self.vocab), first + 1)
        common = np.random.default_rng(PREFIX_SEED).integers(first, end, prefix)
        own = rng.integers(first, end, isl - prefix)
        return [int(word) for word in (*common, *own)]


@dataclass(frozen=True)
class ServedRequest:
    """One answered request, or one that failed; seconds on the client's clock.

    Attributes:
        sent_s: when it was sent.
        first_s: when its first token arrived.
        last_s: when its last token arrived, or when it failed.
        prompt_tokens: tokens of the prompt, as the server counts them.
        tokens: tokens of the answer, as the server counts them.
        error: why it failed; empty if it was answered.
    """

    sent_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    tokens: int
    error: str = ""

    @property
    def ttft_ms(self) -> float:
        """Milliseconds to the first token."""
        return 1e3 * (self.first_s - self.sent_s)

    @property
    def tpot_ms(self) -> float:
        """Milliseconds per further token; NaN for answers of one token."""
        if self.tokens < 2:
            return float("nan")
        return 1e3 * (self.last_s - self.first_s) / (self.tokens - 1)


def serve_load(
    url: str, load: Load, prompts: Prompts, seed: int, limit_s: float
) -> list[ServedRequest]:
    """Send a run of a load to a server, and return its requests in the order of their end.

    A request that fails, or is not answered ``limit_s`` after the run began, is returned with its
    error; the others go on.
    """
    require("aiohttp", "prove", "loading a server")
    return asyncio.run(_serve(url, load, prompts, seed=seed, limit_s=limit_s))


async def _serve(
    url: str, load: Load, prompts: Prompts, seed: int, limit_s: float
) -> list[ServedRequest]:
    """Run a closed or an open loop, with a connection per request.

    Some servers end a connection that is kept, while the next request is written to it: llama.cpp's
    does.
    """
    import aiohttp

    rng = np.random.default_rng(seed)
    requests = load.requests(seed)
    bodies = [_body(requests, i, prompts, rng) for i in range(len(requests))]
    limits = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(url, connector=limits) as session:
        client = _Client(session, deadline_s=time.perf_counter() + limit_s)
        if load.concurrency:
            return await _closed_loop(client, bodies, load.concurrency)
        return await _open_loop(client, bodies, requests.arrival_ms)


@dataclass(frozen=True)
class _Client:
    """A session whose requests end at ``deadline_s`` of the clock ``time.perf_counter``."""

    session: "aiohttp.ClientSession"
    deadline_s: float


async def _closed_loop(
    client: _Client, bodies: list[dict[str, Any]], concurrency: int
) -> list[ServedRequest]:
    """Keep ``concurrency`` requests in flight until all are answered."""
    waiting = iter(bodies)
    served: list[ServedRequest] = []

    async def worker() -> None:
        for body in waiting:
            answered = await _request(client, body)
            served.append(answered)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return served


async def _open_loop(
    client: _Client, bodies: list[dict[str, Any]], arrival_ms: np.ndarray
) -> list[ServedRequest]:
    """Send each request when it arrives, whatever the server does."""
    begun = time.perf_counter()
    served: list[ServedRequest] = []

    async def send(body: dict[str, Any], at_s: float) -> None:
        await asyncio.sleep(max(begun + at_s - time.perf_counter(), 0.0))
        served.append(await _request(client, body))

    arrivals = zip(bodies, arrival_ms / 1e3, strict=True)
    await asyncio.gather(*(send(body, float(at_s)) for body, at_s in arrivals))
    return served


def _body(
    requests: Requests, number: int, prompts: Prompts, rng: np.random.Generator
) -> dict[str, Any]:
    """Return what one request asks for: an answer of exactly its length."""
    osl = int(requests.osl[number])
    return {
        "model": prompts.model,
        "prompt": prompts.draw(int(requests.isl[number]), int(requests.cached[number]), rng),
        "max_tokens": osl,
        "min_tokens": osl,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _request(client: _Client, body: dict[str, Any]) -> ServedRequest:
    """Send one request and time its tokens; never raises for what the server does."""
    import aiohttp

    sent_s = time.perf_counter()
    first_s = last_s = float("nan")
    chunks = 0
    usage: dict[str, Any] = {}
    error = ""
    try:
        patience = aiohttp.ClientTimeout(total=max(client.deadline_s - sent_s, MIN_PATIENCE_S))
        async with client.session.post(COMPLETIONS, json=body, timeout=patience) as answer:
            if answer.status != HTTP_OK:
                text = (await answer.text())[:MAX_ERROR_CHARACTERS]
                error = f"status {answer.status}: {' '.join(text.split())}"
            async for event in _events(answer):
                usage = event.get("usage") or usage
                error = error or _reported_error(event)
                if event.get("choices"):
                    last_s = time.perf_counter()
                    first_s = last_s if chunks == 0 else first_s
                    chunks += 1
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"[:MAX_ERROR_CHARACTERS]

    if not error and chunks == 0:
        error = "the answer has no tokens"
    return ServedRequest(
        sent_s=sent_s,
        first_s=first_s,
        last_s=time.perf_counter() if error else last_s,
        prompt_tokens=int(usage.get("prompt_tokens") or len(body["prompt"])),
        tokens=int(usage.get("completion_tokens") or chunks),
        error=error,
    )


async def _events(answer: "aiohttp.ClientResponse") -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a stream of server-sent events."""
    async for line in answer.content:
        if not line.startswith(DATA):
            continue
        text = line[len(DATA) :].strip()
        if text == DONE:
            return
        event = json.loads(text)
        if isinstance(event, dict):
            yield event


def _reported_error(event: dict[str, Any]) -> str:
    """Return the error that a stream reports after it began; empty if there is none."""
    reported = event.get("error")
    if not reported:
        return ""
    text = reported.get("message") if isinstance(reported, dict) else reported
    return str(text)[:MAX_ERROR_CHARACTERS] or "the server reports an error"
