"""The rules over several fields in Python, for reading a file without an API server.

Each rule of `vllm_operator.api.rules` that looks at one object alone has a function here that says whether it holds.
Rules about a change (`oldSelf`) have none: a file has no past.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from vllm_operator.api import rules

Check = Callable[[Any], bool]


def check_of(rule: str) -> Check | None:
    """Return the function for a CEL rule, or None for a rule about a change."""
    pattern = re.fullmatch(r"self\.matches\(r'(.*)'\)", rule, re.DOTALL)
    if pattern is not None:
        expression = re.compile(pattern[1])
        return lambda value: not isinstance(value, str) or expression.search(value) is not None
    owned = re.fullmatch(r"self\.all\(a, !\(a\.name\.find\(.*\) in \[(.*)\]\)\)", rule)
    if owned is not None:
        names = {name.strip("' ") for name in owned[1].split(",")}
        return lambda arguments: not any(_flag(argument) in names for argument in arguments)
    return _CHECKS.get(rule)


def is_about_change(rule: str) -> bool:
    """True for a rule that compares with the stored object."""
    return "oldSelf" in rule


def _flag(argument: Any) -> str:
    return re.sub(r"^-*", "", str(_of(argument, "name", default=""))).replace("_", "-")


def _of(value: Any, *path: str, default: Any = None) -> Any:
    for name in path:
        if not isinstance(value, Mapping) or value.get(name) is None:
            return default
        value = value[name]
    return value


def _number(value: Any, *path: str, default: int = 1) -> int:
    number = _of(value, *path, default=default)
    return number if isinstance(number, int) else default


def _size(spec: Any, *names: str) -> int:
    size = 1
    for name in names:
        size *= _number(spec, "parallelism", name)
    return size


def _no_flag_twice(arguments: Any) -> bool:
    flags = [_flag(argument) for argument in arguments]
    return len(set(flags)) == len(flags)


def _needed_uuids(spec: Any) -> int:
    return _number(spec, "replicas") * _number(spec, "accelerator", "count", default=_number(spec, "parallelism", "data"))


def _replicas_fit(spec: Any, of: str) -> bool:
    """Whether the replicas can share a claim, where they do."""
    shared = _of(spec, of, "storage") != "ClaimPerReplica"
    return _number(spec, "replicas") <= 1 or not shared or _of(spec, of, "volume", "accessMode") != "ReadWriteOncePod"


def _name_fits(resource: Any) -> bool:
    return re.search(r"^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$", str(_of(resource, "metadata", "name", default=""))) is not None


_CHECKS: Mapping[str, Check] = {
    rules.NAME["rule"]: _name_fits,
    rules.ARGUMENTS[0]["rule"]: _no_flag_twice,
    rules.VALUE_OR_SOURCE["rule"]: lambda v: _of(v, "value") is None or _of(v, "valueFrom") is None,
    rules.REVISION_ON_HUB["rule"]: lambda m: _of(m, "revision") is None or str(_of(m, "uri", default="hf://")).startswith("hf://"),
    rules.MIG_SELECTED["rule"]: lambda m: _of(m, "profile") is not None or _of(m, "uuids") is not None,
    rules.UUID_NEEDS_DRA["rule"]: lambda a: _of(a, "uuids") is None or _of(a, "allocation") == "DRA",
    rules.UUID_OR_MIG["rule"]: lambda a: _of(a, "uuids") is None or _of(a, "mig") is None,
    rules.UUID_PER_REPLICA["rule"]: lambda s: (
        _of(s, "accelerator", "uuids") is None
        or len(_of(s, "accelerator", "uuids"))
        >= _number(s, "replicas") * _number(s, "accelerator", "count", default=_size(s, "tensor", "pipeline", "data"))
    ),
    rules.MIG_UUID_NEEDS_DRA["rule"]: lambda a: _of(a, "mig", "uuids") is None or _of(a, "allocation") == "DRA",
    rules.CLAIM_OR_VOLUME["rule"]: lambda c: _of(c, "claimName") is None or _of(c, "volume") is None,
    rules.ROLLING_UPDATE_FIELDS["rule"]: lambda r: (
        (_of(r, "maxSurge") is None and _of(r, "maxUnavailable") is None) or _of(r, "strategy") != "Recreate"
    ),
    rules.ROLLING_UPDATE_MOVES["rule"]: lambda r: (_of(r, "maxSurge"), _of(r, "maxUnavailable")) != (0, 0),
    rules.STALL_WITHIN_DEADLINE["rule"]: lambda s: (
        _number(s, "stallSeconds", default=0) <= _number(s, "deadlineSeconds", default=_number(s, "stallSeconds", default=0))
    ),
    rules.GPUS_FOR_PARALLELISM["rule"]: lambda s: (
        _of(s, "accelerator", "count") is None or _number(s, "accelerator", "count") >= _size(s, "tensor", "pipeline", "data")
    ),
    rules.MIG_WITHOUT_PEERS["rule"]: lambda s: _of(s, "accelerator", "mig") is None or _size(s, "tensor", "pipeline") == 1,
    rules.MIG_UUID_PER_REPLICA["rule"]: lambda s: (
        _of(s, "accelerator", "mig", "uuids") is None or len(_of(s, "accelerator", "mig", "uuids")) >= _needed_uuids(s)
    ),
    rules.EXPERTS_TO_SPREAD["rule"]: lambda s: (
        _of(s, "parallelism", "expert") in (None, "Disabled") or _number(s, "model", "facts", "experts") > 0
    ),
    rules.CLAIM_IS_SHARED["rule"]: lambda v: (
        _of(v, "claimName") is None or (_of(v, "hostPath") is None and _of(v, "storage") in (None, "SharedClaim"))
    ),
    rules.VOLUME_IS_CLAIM["rule"]: lambda v: (
        _of(v, "volume") is None or (_of(v, "hostPath") is None and _of(v, "storage") in (None, "SharedClaim", "ClaimPerReplica"))
    ),
    rules.PATH_IS_HOSTS["rule"]: lambda v: _of(v, "hostPath") is None or _of(v, "storage") in (None, "HostPath"),
    rules.ONE_POD_CLAIM["rule"]: lambda s: _replicas_fit(s, "cache"),
    rules.ONE_POD_WEIGHTS["rule"]: lambda s: _replicas_fit(s, "weights"),
}
