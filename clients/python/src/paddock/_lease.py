"""The process's lease connection: the kernel ends it with the process, however that dies."""

from __future__ import annotations

import os
import threading

from ._http import STREAM, Response, Transport, current_abort

_mu = threading.Lock()
_leases: dict[str, tuple[str, Response]] = {}


def lease_id(transport: Transport) -> str:
    """This process's lease at the transport's daemon, opened when first asked for.

    A daemon that was started anew is given a new lease.
    """
    with _mu:
        held = _leases.get(transport.path)
        if held is not None:
            if held[1].alive():
                return held[0]
            held[1].close()
            del _leases[transport.path]
        # The lease outlives the request that first needed it, so it cannot be aborted with it.
        token = current_abort.set(None)
        try:
            response = transport.request("POST", "/v1/leases", accept=STREAM)
            event = response.first_line()
        finally:
            current_abort.reset(token)
        name = str(event["lease"])
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
