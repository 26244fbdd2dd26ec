"""File descriptors: every connection needs one, and the kernel grants a process only so many (RLIMIT_NOFILE).

The soft limit, 1024 on many systems, is there for programs that use select(2); this one does not, so it is raised to the
hard one. Where even that is too low, fewer connections are admitted: what comes beyond is then told 503, and never
meets a daemon that cannot accept(2). TLS connections whose handshake is not done are bounded apart (http/handshakes.py).
"""

from __future__ import annotations

import logging
import resource

from acu.errors import StartRefused

# For listening sockets, files, pipes to the engines, 64 TLS handshakes, connections that are being refused, and the 32 of
# the unix socket and of probes that come in beyond the number that is admitted (http/server.py).
SPARE = 224
LEAST_CONNECTIONS = 16

log = logging.getLogger(__name__)


def make_room(max_connections: int) -> int:
    """Raise the soft limit, and return how many connections may be admitted: `max_connections`, or what fits.

    Raises StartRefused when not even LEAST_CONNECTIONS (or `max_connections`, if that is less) fit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    admitted = fitting(max_connections, hard)
    if admitted < min(max_connections, LEAST_CONNECTIONS):
        raise StartRefused(
            f"network.max_connections: a process may have {hard} open files here (ulimit -Hn), and "
            f"{SPARE + LEAST_CONNECTIONS} are needed; raise the limit (LimitNOFILE= under systemd)"
        )
    if admitted < max_connections:
        log.warning(
            "fewer connections than configured: the limit of open files is too low",
            extra={"max_connections": max_connections, "admitted": admitted, "open_files_limit": hard},
        )
    return admitted


def fitting(max_connections: int, limit: int) -> int:
    """How many connections fit into a limit of descriptors, at most `max_connections`."""
    return max_connections if limit == resource.RLIM_INFINITY else max(0, min(max_connections, limit - SPARE))
