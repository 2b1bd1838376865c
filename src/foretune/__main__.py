"""``python -m foretune``: the command line."""

import sys

from foretune.cli import main

if __name__ == "__main__":
    sys.exit(main())
