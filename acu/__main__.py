"""`python -m acu`, and the `acu` command."""

import signal
import sys


def main() -> int:
    """Run the command that the command line names. Returns its exit code."""
    # Ctrl-C ends the process at once until the command takes over: an exception in the middle of the import of an
    # extension module has crashed the interpreter.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from acu import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
