"""Planned commands parsed by the engines' own parsers.

Run with an engine's Python: ``ENGINE/bin/python benchmarks/plan_parsers.py ENGINE commands.json``,
where ``plan_flags.py --commands commands.json`` wrote the file. It needs the engine's wheel, a
torch for CPUs and what the parser imports, not a GPU: ``.ci/extended`` lists the packages. Values
are converted and checked as at a start; the model itself is not loaded.
"""

import argparse
import contextlib
import io
import json
import sys
from importlib.metadata import version
from pathlib import Path


def vllm_parser() -> argparse.ArgumentParser:
    """Return the parser of ``vllm serve``."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()  # a wheel for CUDA finds no device here
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


def sglang_parser() -> argparse.ArgumentParser:
    """Return the parser of ``python -m sglang.launch_server``."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


PARSERS = {"vllm": (vllm_parser, 2), "sglang": (sglang_parser, 3)}
"""Engine -> function that returns its parser, and how many words start the program."""


def refused(parser: argparse.ArgumentParser, words: list[str]) -> str:
    """Return why the parser refuses the words; empty if it takes them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    return ""


def main() -> None:
    """Parse all commands; exit with 1 if one is refused."""
    engine = sys.argv[1]
    make, program = PARSERS[engine]
    parser = make()
    commands = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))[engine]
    reasons = [refused(parser, command[program:]) for command in commands]
    for reason in sorted(set(filter(None, reasons))):
        print(f"{reasons.count(reason)} times: {reason}", file=sys.stderr)
    count = sum(map(bool, reasons))
    print(f"{engine} {version(engine)}: {len(reasons) - count} commands parse, {count} are refused")
    sys.exit(count > 0)


if __name__ == "__main__":
    main()
