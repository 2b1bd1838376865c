"""Headless Chromium: what a page looks like, and how wide it is."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--allow-file-access-from-files", "--virtual-time-budget=5000",
)  # fmt: skip


class Browser:
    """A browser with a profile of its own."""

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
        frame = self._folder / "frame.html"
        frame.write_text(
            f'<iframe src="{page.as_uri()}" width="{width}" height="900" style="border:0" onload="'
            'document.title = this.contentDocument.documentElement.scrollWidth"></iframe>'
        )
        shown = self._run(frame, "--dump-dom", "--window-size=2000,1000").stdout.decode()
        return int(shown.partition("<title>")[2].partition("</title>")[0])

    def _run(self, page: Path, *options: str) -> "subprocess.CompletedProcess[bytes]":
        program = next(filter(None, map(shutil.which, NAMES)))
        command = [program, *_FLAGS, f"--user-data-dir={self._folder}", *options, page.as_uri()]
        return subprocess.run(command, capture_output=True, timeout=100, check=True)
