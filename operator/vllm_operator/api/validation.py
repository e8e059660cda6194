"""Validation of a VLLMDeployment or a preset as the API server does it, for files that are read without one.

The schema is that of the CRD, and the messages name fields as the API server does. An unknown field is an error, as in `kubectl apply`, and
the message suggests a similar name. Each rule of `vllm_operator.api.rules` that looks at one object has a function here that evaluates it.
Rules about a change (`oldSelf`) have none, because a file has no previous state.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from vllm_operator.api import rules
from vllm_operator.api.crd import custom_resource_definition, preset_definition
from vllm_operator.api.labels import API_VERSION, KIND
from vllm_operator.api.operation import PresetKind

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
}
KEPT_BY_KUBERNETES = ("apiVersion", "kind", "metadata", "status")


def violations(manifest: Mapping[str, Any]) -> list[str]:
    """Return what the API server would refuse, one line per problem, in the order of the fields."""
    kind = str(manifest.get("kind"))
    if kind not in (KIND, *PresetKind) or manifest.get("apiVersion") != API_VERSION:
        given = f"{manifest.get('apiVersion')} {manifest.get('kind')}"
        return [f"apiVersion and kind must be {API_VERSION} and {KIND}, not {given}"]
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        return ["metadata.name: Required value"]
    schema = _schema(kind)
    found = list(_check_fields(manifest, {**schema["properties"], **{name: {} for name in KEPT_BY_KUBERNETES}}, ""))
    if "spec" not in manifest:
        found.append("spec: Required value")
    else:
        found.extend(_check(manifest["spec"], schema["properties"]["spec"], "spec"))
    return found or list(_check_rules(manifest, schema, ""))


@cache
def _schema(kind: str) -> Mapping[str, Any]:
    definition = custom_resource_definition() if kind == KIND else preset_definition(PresetKind(kind))
    schema: Mapping[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _check(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Check a value and, if it has the right type, its content. Rules are evaluated only if both are valid."""
    kind = schema.get("type")
    wrong_bool = isinstance(value, bool) and kind != "boolean"
    if kind is not None and (wrong_bool or not isinstance(value, TYPES[kind])):
        yield f"{path}: Invalid value: {_type_of(value)!r}: must be of type {kind}{_hint(value, schema)}"
        return
    own = list(_check_bounds(value, schema, path))
    yield from own
    inner: list[str] = []
    if isinstance(value, Mapping):
        inner = list(_check_object(value, schema, path))
    elif isinstance(value, list):
        inner = list(_check_list(value, schema, path))
    yield from inner
    if not own and not inner:
        yield from _check_rules(value, schema, path)


def _check_object(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    fields: Mapping[str, Any] = schema.get("properties", {})
    if (entries := schema.get("additionalProperties")) is not None:
        fields = dict.fromkeys(value, entries)
    for name in schema.get("required", ()):
        if value.get(name) is None:
            yield f"{path}.{name}: Required value"
    if fields and not schema.get("x-kubernetes-preserve-unknown-fields"):
        yield from _check_fields(value, fields, path)
    for name, field in fields.items():
        if value.get(name) is not None:
            yield from _check(value[name], field, f"{path}.{name}")


def _check_fields(value: Mapping[str, Any], fields: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in value:
        if name in fields:
            continue
        near = difflib.get_close_matches(str(name), fields, n=1, cutoff=0.6)
        meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(fields))}"
        yield f'unknown field "{path}{"." if path else ""}{name}"{meant}'


def _check_list(value: list[Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for index, item in enumerate(value):
        yield from _check(item, schema.get("items", {}), f"{path}[{index}]")
    keys = schema.get("x-kubernetes-list-map-keys", ())
    if schema.get("x-kubernetes-list-type") not in ("set", "map"):
        return
    seen: list[Any] = []
    for index, item in enumerate(value):
        identity = {key: item.get(key) for key in keys} if keys and isinstance(item, Mapping) else item
        if identity in seen:
            yield f"{path}[{index}]: Duplicate value: {identity if isinstance(identity, str) else repr(identity)}"
        seen.append(identity)


def _check_bounds(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{choice}"' for choice in schema["enum"])
        yield f'{path}: Unsupported value: "{value}": supported values: {allowed}'
    if isinstance(value, int) and value < schema.get("minimum", value):
        yield f"{path}: Invalid value: {value}: should be greater than or equal to {schema['minimum']}"
    if isinstance(value, int) and value > schema.get("maximum", value):
        yield f"{path}: Invalid value: {value}: should be less than or equal to {schema['maximum']}"
    if isinstance(value, str) and "pattern" in schema and re.search(_to_python(schema["pattern"]), value) is None:
        yield f"{path}: Invalid value: {value!r}: should match '{schema['pattern']}'"
    if isinstance(value, str | list):
        unit, low, high = ("characters", "minLength", "maxLength") if isinstance(value, str) else ("items", "minItems", "maxItems")
        if len(value) < schema.get(low, 0):
            yield f"{path}: Invalid value: should have at least {schema[low]} {unit}"
        if len(value) > schema.get(high, len(value)):
            yield f"{path}: Too long: may have at most {schema[high]} {unit}"


def _check_rules(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if is_about_change(rule["rule"]):
            continue
        check = check_of(rule["rule"])
        if check is not None and not check(value):
            shown = f"Invalid value: {value!r}: " if isinstance(value, str) else "Invalid value: "
            yield f"{path}{rule.get('fieldPath', '')}: {shown}{rule['message']}".lstrip(": ")


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", type(None): "null"}
    return names.get(type(value), "object")


def _hint(value: Any, schema: Mapping[str, Any]) -> str:
    if schema.get("type") == "string" and isinstance(value, bool | int | float):
        return f'; put it in quotes: "{str(value).lower() if isinstance(value, bool) else value}"'
    if schema.get("type") == "integer" and isinstance(value, str) and value.isdecimal():
        return f"; write it without quotes: {value}"
    return ""


Check = Callable[[Any], bool]


def check_of(rule: str) -> Check | None:
    """Return the function for a CEL rule, or None for a rule about a change."""
    pattern = re.fullmatch(r"self\.matches\(r'(.*)'\)", rule, re.DOTALL)
    if pattern is not None:
        expression = re.compile(_to_python(pattern[1]))
        return lambda value: not isinstance(value, str) or expression.search(value) is not None
    owned = re.fullmatch(r"self\.all\(a, !\(a\.name\.find\(.*\) in \[(.*)\]\)\)", rule)
    if owned is not None:
        names = {name.strip("' ") for name in owned[1].split(",")}
        return lambda arguments: not any(_flag(argument) in names for argument in arguments)
    words = re.fullmatch(r"self\.all\(w, !\(w\.find\(.*\) in \[(.*)\]\)\)", rule)
    if words is not None:
        forbidden = {name.strip("' ") for name in words[1].split(",")}
        return lambda given: not any(_flag_word(word) in forbidden for word in given)
    return _CHECKS.get(rule)


def _to_python(pattern: str) -> str:
    """In RE2, `$` matches only at the end of a text. In Python, it also matches before a newline at the end."""
    return f"{pattern[:-1]}\\Z" if pattern.endswith("$") else pattern


def is_about_change(rule: str) -> bool:
    """True for a rule that compares with the stored object."""
    return "oldSelf" in rule


def _flag(argument: Any) -> str:
    return re.sub(r"^-*", "", str(_of(argument, "name", default=""))).replace("_", "-")


def _flag_word(word: str) -> str:
    found = re.match(rules.WORD, word)
    return found[0].replace("_", "-") if found else ""


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


def _replicas_fit(spec: Any, field: str) -> bool:
    """Whether the access mode of a shared PVC allows this number of replicas."""
    return _number(spec, "replicas") <= 1 or _is_for_several(spec, field)


def _is_for_several(spec: Any, field: str) -> bool:
    """Whether more than one Pod can mount a volume, or each has its own."""
    return str(_of(spec, field, "storage")) == "ClaimPerReplica" or str(_of(spec, field, "volume", "accessMode")) != "ReadWriteOncePod"


def _fetches_beside_replica(spec: Any) -> bool:
    """Whether a Job may fetch weights beside a replica, as far as the spec says, or need not."""
    if _of(spec, "weights", "prefetch", default="Never") == "Never" or _of(spec, "weights", "claimName") is not None:
        return True
    of = "weights" if _of(spec, "weights", "volume") is not None else "cache"
    return str(_of(spec, of, "volume", "accessMode")) != "ReadWriteOncePod"


def _name_fits(resource: Any) -> bool:
    return re.fullmatch(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", str(_of(resource, "metadata", "name", default=""))) is not None


_CHECKS: Mapping[str, Check] = {
    rules.NAME["rule"]: _name_fits,
    rules.ARGUMENTS[0]["rule"]: _no_flag_twice,
    rules.EXTRA_ARGUMENTS[0]["rule"]: lambda words: not words or bool(_flag_word(words[0])),
    rules.EXTRA_ARGUMENTS[1]["rule"]: lambda words: not any(word.startswith("--") and words.count(word) > 1 for word in words),
    rules.ARGUMENTS_APART["rule"]: lambda e: {f"--{_flag(a)}" for a in _of(e, "args", default=())}.isdisjoint(
        w.partition("=")[0] for w in _of(e, "extraArgs", default=())
    ),
    rules.VALUE_OR_VALUES["rule"]: lambda a: _of(a, "value") is None or _of(a, "values") is None,
    rules.VALUE_OR_SOURCE["rule"]: lambda v: _of(v, "value") is None or _of(v, "valueFrom") is None,
    rules.REVISION_ON_HUB["rule"]: lambda m: _of(m, "revision") is None or str(_of(m, "uri", default="hf://")).startswith("hf://"),
    rules.MIG_SELECTED["rule"]: lambda m: any(_of(m, name) is not None for name in ("mode", "profile", "uuids")),
    rules.MIG_MODE["rule"]: lambda m: _of(m, "mode") != "Disabled" or (_of(m, "profile") is None and _of(m, "uuids") is None),
    rules.UUID_NEEDS_DRA["rule"]: lambda a: _of(a, "uuids") is None or _of(a, "allocation") == "DRA",
    rules.UUID_OR_MIG["rule"]: lambda a: _of(a, "uuids") is None or _of(a, "mig") is None,
    rules.UUID_PER_REPLICA["rule"]: lambda s: (
        _of(s, "accelerator", "uuids") is None
        or len(_of(s, "accelerator", "uuids"))
        >= _number(s, "replicas") * _number(s, "accelerator", "count", default=_size(s, "tensor", "pipeline", "data"))
    ),
    rules.MIG_UUID_NEEDS_DRA["rule"]: lambda a: _of(a, "mig", "uuids") is None or _of(a, "allocation") == "DRA",
    rules.ARTIFACT_SOURCE["rule"]: lambda a: _of(a, "repository") is not None or _of(a, "reference") is not None,
    rules.PUBLISHED_SOMEWHERE["rule"]: lambda a: _of(a, "publish", default="Never") == "Never" or _of(a, "repository") is not None,
    rules.PREFETCH_TO_CLAIM["rule"]: lambda w: (
        _of(w, "prefetch", default="Never") == "Never"
        or (_of(w, "hostPath") is None and _of(w, "storage", default="SharedClaim") == "SharedClaim")
    ),
    rules.PREFETCH_FROM_HUB["rule"]: lambda s: (
        _of(s, "weights", "prefetch", default="Never") == "Never" or str(_of(s, "model", "uri", default="hf://")).startswith("hf://")
    ),
    rules.CLAIM_OR_VOLUME["rule"]: lambda c: _of(c, "claimName") is None or _of(c, "volume") is None,
    rules.ROLLING_UPDATE_FIELDS["rule"]: lambda r: (
        (_of(r, "maxSurge") is None and _of(r, "maxUnavailable") is None) or _of(r, "strategy") != "Recreate"
    ),
    rules.ROLLING_UPDATE_MOVES["rule"]: lambda r: (_of(r, "maxSurge"), _of(r, "maxUnavailable")) != (0, 0),
    rules.BOUNDS_OF_REPLICAS["rule"]: lambda a: _of(a, "minReplicas") is None or _of(a, "minReplicas") <= _of(a, "maxReplicas", default=0),
    rules.ZERO_NEEDS_KEDA["rule"]: lambda a: _of(a, "minReplicas") != 0 or _of(a, "keda", "activationQuery") is not None,
    rules.TARGET_IN_PERCENT["rule"]: lambda a: _of(a, "metric") != "KVCacheUsage" or _number(a, "target", default=0) <= 100,
    rules.OWN_ANNOTATIONS["rule"]: lambda names: not any(str(name).startswith("vllm-operator.dev/") for name in names),
    rules.CLASS_OF_LOAD_BALANCER["rule"]: lambda s: _of(s, "loadBalancerClass") is None or _of(s, "type") == "LoadBalancer",
    rules.STALL_WITHIN_DEADLINE["rule"]: lambda s: (
        _number(s, "stallSeconds", default=0) <= _number(s, "deadlineSeconds", default=_number(s, "stallSeconds", default=0))
    ),
    rules.GPUS_FOR_PARALLELISM["rule"]: lambda s: (
        _of(s, "accelerator", "count") is None or _number(s, "accelerator", "count") >= _size(s, "tensor", "pipeline", "data")
    ),
    rules.MIG_WITHOUT_PEERS["rule"]: lambda s: (
        _of(s, "accelerator", "mig") is None or _of(s, "accelerator", "mig", "mode") == "Disabled" or _size(s, "tensor", "pipeline") == 1
    ),
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
    rules.ONE_POD_SURGE["rule"]: lambda s: (
        _number(s, "rollout", "maxSurge", default=0) == 0 or (_is_for_several(s, "cache") and _is_for_several(s, "weights"))
    ),
    rules.PREFETCH_BESIDE_REPLICA["rule"]: _fetches_beside_replica,
}
