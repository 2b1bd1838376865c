"""What pyproject.toml cannot say: where the packages are, and the links of a package index.

The packages are folders at the root, and `src/foretune/` has a link to each. Git writes a link as a
text file where the system, or its settings, has no links; so do some programs that unpack a zip
archive. There, the folders at the root take the links' place.

A package index shows README.md without the files beside it: its links become absolute.
"""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = ("collect", "datasets", "features", "models", "plan", "search", "tune")
"""The packages at the root."""

RELATIVE_IMAGE = re.compile(r"(!\[[^\]]*\]\()(?!\w+:)")
RELATIVE_LINK = re.compile(r"(\]\()(?!\w+:|#)")
"""Each matches what precedes the target in Markdown: ``![text](`` and ``](``."""


def readme_of_index() -> str:
    """Return README.md with absolute links. The repository's address is in pyproject.toml."""
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    source = settings["project"]["urls"]["Source"]
    readme = Path("README.md").read_text(encoding="utf-8")

    # A link leads to the page that shows a file; an image needs the file itself.
    readme = RELATIVE_IMAGE.sub(rf"\1{source}/raw/main/", readme)
    return RELATIVE_LINK.sub(rf"\1{source}/blob/main/", readme)


packages = find_packages("src")
package_dir = {"": "src"}

for folder in FOLDERS:
    if Path("src", "foretune", folder).is_dir():
        continue  # a link; in a source distribution, the folder itself

    package = f"foretune.{folder}"
    package_dir[package] = folder
    packages.append(package)
    packages += [f"{package}.{inside}" for inside in find_packages(folder)]

setup(
    packages=packages,
    package_dir=package_dir,
    long_description=readme_of_index(),
    long_description_content_type="text/markdown",
)
