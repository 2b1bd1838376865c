"""Finds the packages. In a checkout without links, the folders at the root take their place.

Git writes a link as a text file where the system, or its settings, has no links. So do some
programs that unpack a zip archive.
"""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = ("collect", "datasets", "features", "models", "plan", "search", "tune")
"""The packages at the root; `src/foretune/` has a link to each."""

packages = find_packages("src")
package_dir = {"": "src"}

for folder in FOLDERS:
    if Path("src", "foretune", folder).is_dir():
        continue  # a link; in a source distribution, the folder itself

    package = f"foretune.{folder}"
    package_dir[package] = folder
    packages.append(package)
    packages += [f"{package}.{inside}" for inside in find_packages(folder)]

setup(packages=packages, package_dir=package_dir)
