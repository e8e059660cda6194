"""Digests of values, for names and for noticing changes."""

import hashlib
import json


def digest(value: object, length: int = 64) -> str:
    """The first hexadecimal digits of the SHA-256 of a value as JSON. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:length]
