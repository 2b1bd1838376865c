"""Headless Chromium: what a page looks like, and how wide it is."""

import html
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--virtual-time-budget=5000",
)
_LOOK = """
const found = {};
function look(i, page) {
  const missing = [...page.images].filter(image => !image.naturalWidth).map(image => image.src);
  const heading = page.querySelector("h1");
  found[i] = {width: page.documentElement.scrollWidth, missing, heading: heading?.textContent};
  document.title = JSON.stringify(found);
}"""


class Browser:
    """A browser that remembers nothing.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def screenshot(self, page: Path, width: int, height: int, dark: bool = False) -> np.ndarray:
        """Return the page as it is seen, height x width x 3 values of red, green and blue."""
        image = self._folder / "page.png"
        scheme = ("--blink-settings=preferredColorScheme=0",) if dark else ()
        self._run(page, f"--screenshot={image}", f"--window-size={width},{height}", *scheme)
        return np.asarray(Image.open(image).convert("RGB"))

    def width_of_content(self, page: Path, width: int) -> int:
        """Return how wide the page is, in pixels, in a window of ``width``."""
        return self.looked_at([page], width)[0]["width"]

    def looked_at(self, pages: Sequence[Path], width: int) -> list[dict[str, Any]]:
        """Return what each page is like in a window of ``width``.

        ``width`` is how wide it is, in pixels; ``missing`` names pictures that are not there;
        ``heading`` is the text of the first heading.
        """
        frames = "".join(
            f'<iframe src="{page.as_uri()}" width="{width}" height="900" style="border:0" '
            f'onload="look({i}, this.contentDocument)"></iframe>'
            for i, page in enumerate(pages)
        )
        frame = self._folder / "frame.html"
        frame.write_text(f"<script>{_LOOK}</script>{frames}", encoding="utf-8")
        shown = self._run(frame, "--dump-dom", "--window-size=2000,1000").stdout.decode()
        title = html.unescape(shown.partition("<title>")[2].partition("</title>")[0])
        found = json.loads(title)
        return [found[str(i)] for i in range(len(pages))]

    def _run(self, page: Path, *options: str) -> "subprocess.CompletedProcess[bytes]":
        program = next(filter(None, map(shutil.which, NAMES)))
        with tempfile.TemporaryDirectory(dir=self._folder) as profile:  # pages keep their colours
            command = [program, *_FLAGS, f"--user-data-dir={profile}", *options, page.as_uri()]
            return subprocess.run(command, capture_output=True, timeout=100, check=True)
