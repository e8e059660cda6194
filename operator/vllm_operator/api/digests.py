"""Digests of values, used in names and to detect changes."""

import hashlib
import json


def digest(value: object, length: int = 64) -> str:
    """Return the first hexadecimal digits of the SHA-256 of a value as JSON. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:length]
