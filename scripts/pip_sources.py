"""Read `pip config list`, print `export UV_...=...` lines: the same package sources, in uv's words.

What the environment sets for uv is left alone. A line that cannot be understood is skipped: uv then uses its defaults.
Additional indexes go into `extra_indexes`, for the one package that ordinary indexes lack (the CPU build of torch): pip
takes a version's files from all indexes together, but uv from the first that has the version, and then misses some.
"""

import ast
import os
import shlex
import sys

# pip's option -> uv's variable, and how uv separates several values
VARIABLES = {
    "cert": ("SSL_CERT_FILE", " "),
    "extra-index-url": ("extra_indexes", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
# pip lets later sections and the environment win, in this order.
SECTIONS = ("global", "download", "install", ":env:")


def parse(listing: str) -> dict[str, str]:
    """`pip config list` -> option to value, the strongest section's."""
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        key, separator, text = line.partition("=")
        section, dot, option = key.strip().partition(".")
        if not (separator and dot and section in SECTIONS and option in VARIABLES):
            continue
        try:
            value = str(ast.literal_eval(text.strip()))
        except (ValueError, SyntaxError):
            continue
        rank = SECTIONS.index(section)
        if rank >= found.get(option, (-1, ""))[0]:
            found[option] = (rank, value)
    return {option: value for option, (_, value) in found.items()}


def exports(options: dict[str, str], environment: dict[str, str]) -> list[str]:
    """The shell lines for what `environment` does not set already."""
    lines = []
    for option, value in sorted(options.items()):
        variable, separator = VARIABLES[option]
        if value.strip() and variable not in environment:
            prefix = "export " if variable.isupper() else ""
            lines.append(f"{prefix}{variable}={shlex.quote(separator.join(value.split()))}")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join(exports(parse(sys.stdin.read()), dict(os.environ))) + "\n")
