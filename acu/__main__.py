"""`python -m acu`, and the `acu` command."""

import sys

from acu.cli import main

if __name__ == "__main__":
    sys.exit(main())
