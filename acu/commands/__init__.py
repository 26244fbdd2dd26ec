"""One module a command of `acu`: each has `add_arguments(subparsers)` and `run(args)`."""
