"""`python -m acu`, and the `acu` command."""

import os
import signal
import sys


def keep_standard_streams() -> None:
    """Put /dev/null where the caller closed standard input, output or error.

    Else the next file or socket would take its number, and be written into by whatever writes there.
    """
    for number, mode in enumerate(("r", "w", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
            name = ("stdin", "stdout", "stderr")[number]
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115  for good


def main() -> int:
    """Run the command that the command line names. Returns its exit code."""
    # Ctrl-C ends the process at once until the command takes over: an exception in the middle of the import of an
    # extension module has crashed the interpreter. Where the caller has it ignored (`acu ... &` in a script), it stays so.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    keep_standard_streams()
    from acu import cli  # after both: an import opens files

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
