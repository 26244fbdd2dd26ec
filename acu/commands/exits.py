"""Exit codes of the commands, as `acu --help` lists them."""

OK, FAILED, REFUSED, NO_DAEMON, INTERRUPTED = 0, 1, 2, 3, 130
