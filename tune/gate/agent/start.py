"""The program that a gate runs with the Python of each environment: ``start.py PACKAGE SOCKET``.

``PACKAGE`` is the folder of the package foretune, ``SOCKET`` the number of an inherited descriptor.
The environment may have another Foretune, or none. So the agent's modules are loaded below empty
packages, which are forgotten before any code of a benchmark runs.
"""

import importlib
import os
import sys
import types

PACKAGES = (
    "foretune",
    "foretune.collect",
    "foretune.tune",
    "foretune.tune.gate",
    "foretune.tune.gate.agent",
)


def load_agent(package_folder):
    """Return the module `foretune.tune.gate.agent.server`, and leave no other trace of foretune."""
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(package_folder, *name.split(".")[1:])]
        sys.modules[name] = package
    server = importlib.import_module("foretune.tune.gate.agent.server")
    for name in list(sys.modules):
        if name.partition(".")[0] == "foretune":
            del sys.modules[name]
    return server


if __name__ == "__main__":
    del sys.path[0]  # this file's folder
    load_agent(sys.argv[1]).serve(int(sys.argv[2]), sys.stdin.buffer.read())
