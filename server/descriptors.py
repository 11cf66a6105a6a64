"""How many file descriptors this process may have, and how many connections that leaves room for."""

from __future__ import annotations

import contextlib
import resource

from server import limits


def raise_descriptor_limit() -> None:
    """As many descriptors as the system lets this process have, within reason: many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.MAX_CONNECTIONS + limits.RESERVED_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections() -> int:
    """Connections that leave enough descriptors for sockets, pipes and a new engine."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return limits.MAX_CONNECTIONS
    return min(limits.MAX_CONNECTIONS, max(8, soft - limits.RESERVED_DESCRIPTORS))
