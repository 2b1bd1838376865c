"""A small server with the interface of OpenAI's completions, for tests: a process over HTTP.

It answers after times that follow a law: a step takes ``--step-ms`` plus ``--request-ms`` per
request in it, longer with more than ``--slots`` requests waiting. It can refuse to start, run out
of memory, hang, or die while it serves::

    python toy_server.py --port 8123 --slots 4 --fail oom
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAILURES = ("", "start", "oom", "flag", "hang-start", "hang", "die", "refuse", "short")


class Engine:
    """Batches requests: one token per step for each request that has a slot."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.slots = threading.Semaphore(options.slots)
        self.lock = threading.Lock()
        self.running = 0
        self.served = 0

    def generate(self, tokens: int, prompt: int):
        """Yield once per token, after the time of its step."""
        with self.slots:
            with self.lock:
                self.running += 1
            try:
                time.sleep(prompt * self.options.prompt_ms / 1e3)
                for _ in range(tokens):
                    step_ms = self.options.step_ms + self.options.request_ms * self.running
                    time.sleep(step_ms / 1e3)
                    yield
            finally:
                with self.lock:
                    self.running -= 1
                    self.served += 1


class Handler(BaseHTTPRequestHandler):
    """Health, the list of models, metrics, and completions as a stream."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *arguments) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(b"ok", "text/plain")
        elif self.path == "/v1/models":
            self._send(json.dumps({"data": [{"id": "toy"}]}).encode(), "application/json")
        elif self.path == "/metrics":
            engine = self.engine
            text = (
                "# HELP vllm:kv_cache_usage_perc share\n"
                f'vllm:kv_cache_usage_perc{{model="toy"}} {engine.running / 10}\n'
                f"vllm:num_requests_running {engine.running}\n"
                f"vllm:prefix_cache_queries_total {10 * engine.served}\n"
                f"vllm:prefix_cache_hits_total {5 * engine.served}\n"
            )
            self._send(text.encode(), "text/plain")
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        asked = json.loads(self.rfile.read(length))
        fail = self.engine.options.fail
        if fail == "die" and self.engine.served >= 2:
            print("RuntimeError: the engine died", flush=True)
            os._exit(3)
        if fail == "hang":
            time.sleep(3600)
        if fail == "refuse":
            self.send_error(400, "the prompt is too long")
            return

        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        tokens = asked["max_tokens"] // (4 if fail == "short" else 1)
        for _ in self.engine.generate(tokens, len(asked["prompt"])):
            self._event({"choices": [{"text": "w"}]})
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": tokens}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--request-ms", type=float, default=0.0)
    parser.add_argument("--prompt-ms", type=float, default=0.0, help="per token of the prompt")
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--max-slots", type=int, default=10**6, help="more run out of memory")
    parser.add_argument("--fail", choices=FAILURES, default="")
    parser.add_argument("--children", type=int, default=0, help="processes in other sessions")
    options = parser.parse_args()

    for _ in range(options.children):
        sleeper = f"import time; time.sleep(600)  # of {options.port}"
        subprocess.Popen([sys.executable, "-S", "-c", sleeper], start_new_session=True)
    if options.fail == "start":
        sys.exit("ValueError: the model has a layer that is not known")
    if options.fail == "oom" or options.slots > options.max_slots:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    if options.fail == "flag":
        sys.exit("toy_server: error: unrecognized arguments: --graphs")
    if options.fail == "hang-start":
        time.sleep(3600)
    time.sleep(options.start_s)
    Handler.engine = Engine(options)
    Server(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
