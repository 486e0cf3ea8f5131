"""The process's lease connection: the kernel ends it with the process, however that dies."""

from __future__ import annotations

import os
import threading

from ._blocking import Response, Transport

_mu = threading.Lock()
_leases: dict[str, tuple[str, Response]] = {}


def held_lease(transport: Transport) -> str:
    """This process's lease at the transport's daemon, or nothing where it has none yet."""
    held = _leases.get(transport.path)
    return held[0] if held is not None and held[1].alive() else ""


def lease_id(transport: Transport) -> str:
    """This process's lease at the transport's daemon, opened when first asked for.

    A daemon that was started anew is given a new lease.
    """
    with _mu:
        name = held_lease(transport)
        if name:
            return name
        gone = _leases.pop(transport.path, None)
        if gone is not None:
            gone[1].close()
        response = transport.open_stream("POST", "/v1/leases")
        name = str(response.first_line()["lease"])
        _leases[transport.path] = (name, response)
        return name


def _after_fork_in_child() -> None:
    # The descriptor is a copy: kept, it would hold the parent's lease after the parent's death.
    global _mu
    _mu = threading.Lock()
    for _, response in _leases.values():
        response.close()
    _leases.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
