"""What `pyproject.toml` cannot say: a build without the linked packages must not pass as one."""

import sys
from pathlib import Path

for link in Path(__file__).parent.glob("src/foretune/*"):
    if link.is_file() and (Path(__file__).parent / link.name).is_dir():  # the text of a link
        sys.exit(
            f"src/foretune/{link.name} must be a link to {link.name}/, and this checkout has no "
            "links: clone it again with 'git clone -c core.symlinks=true'"
        )

from setuptools import setup  # noqa: E402

setup()
