"""Payloads: bytes stay as they are, other objects travel as tagged JSON."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

_MAGIC = b"paddock-json/1\n"


def encode_payload(value: Any) -> bytes:
    """Encode None, bool, int, float, str, bytes, lists, tuples and dicts of these."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        if not raw.startswith(_MAGIC):
            return raw
        value = raw  # would be taken for tagged JSON when read
    return _MAGIC + json.dumps(_tag(value), separators=(",", ":"), allow_nan=False).encode()


def decode_payload(raw: bytes) -> Any:
    """The inverse of encode_payload."""
    return _untag(json.loads(raw[len(_MAGIC) :])) if raw.startswith(_MAGIC) else raw


def _tag(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, tuple):
        return {"$tuple": [_tag(v) for v in value]}
    if isinstance(value, list):
        return [_tag(v) for v in value]
    if isinstance(value, dict):
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: _tag(v) for k, v in value.items()}
        return {"$dict": [[_tag(k), _tag(v)] for k, v in value.items()]}
    raise TypeError(f"payload: {type(value).__name__} is neither JSON nor bytes; encode it to bytes first")


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(v) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key == "$float":
            return float(inner)
        if key == "$bytes":
            return base64.b64decode(inner)
        if key == "$tuple":
            return tuple(_untag(v) for v in inner)
        if key == "$dict":
            return {_untag(k): _untag(v) for k, v in inner}
    return {k: _untag(v) for k, v in value.items()}
