"""Finding variables, flags and names of backends in a syntax tree of vLLM's sources."""

import ast
from collections.abc import Iterator
from typing import Any


def _strings(node: ast.AST) -> list[str]:
    """Constants of a list, a tuple or `Literal[...]`, nested ones included, in order."""
    return [str(leaf.value) for leaf in ast.walk(node) if isinstance(leaf, ast.Constant) and leaf.value is not None]


def _class(source: ast.Module, name: str) -> ast.ClassDef | None:
    return next((node for node in source.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _called(node: ast.AST) -> str:
    return ast.unparse(node.func).rsplit(".", 1)[-1] if isinstance(node, ast.Call) else ""


def _assigned(source: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Module-level names with their values."""
    for node in source.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name), *_], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                yield name, value


def literals(source: ast.Module) -> dict[str, list[str]]:
    """Module-level `Name = Literal[...]`; names that a literal refers to are resolved within the module."""
    found: dict[str, list[str]] = {}
    for name, value in _assigned(source):
        if isinstance(value, ast.Subscript) and ast.unparse(value.value).rsplit(".", 1)[-1] in ("Literal", "Union"):
            names = [leaf.id for leaf in ast.walk(value.slice) if isinstance(leaf, ast.Name) and leaf.id in found]
            found[name] = _strings(value.slice) + [item for other in names for item in found[other]]
    return found


def enum_members(source: ast.Module, name: str) -> list[str]:
    """Members of an enumeration; empty if the module has no such class."""
    cls = _class(source, name)
    targets = (node.targets[0] for node in cls.body if isinstance(node, ast.Assign)) if cls else ()
    return [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]


def field_names(source: ast.Module, name: str) -> list[str]:
    cls = _class(source, name)
    targets = (node.target for node in cls.body if isinstance(node, ast.AnnAssign)) if cls else ()
    return sorted(target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_"))


def flags_of_calls(source: ast.Module) -> dict[str, list[str]]:
    """Flags of every `add_argument("--flag", ...)`, each with its other spellings."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(source):
        if not isinstance(node, ast.Call) or _called(node) != "add_argument":
            continue
        names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and str(arg.value).startswith("-")]
        if names:
            found[str(names[0])] = sorted(str(name) for name in names[1:])
    return found


def flags_of_fields(source: ast.Module, classes: tuple[str, ...]) -> dict[str, list[str]]:
    """Flags made of dataclass fields, one each."""
    names = (name for cls in classes for name in field_names(source, cls))
    return {f"--{name.replace('_', '-')}": [] for name in names}


def _registered(source: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for name, value in _assigned(source):
        if name == "environment_variables" and isinstance(value, ast.Dict):
            for key, entry in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), entry


def _values(entry: ast.expr) -> list[str]:
    for node in ast.walk(entry):
        if isinstance(node, ast.Call) and _called(node).startswith(("env_with_choices", "env_list_with_choices", "env_set_with_choices")):
            lists = [arg for arg in [*node.args, *(k.value for k in node.keywords)] if isinstance(arg, ast.List | ast.Tuple)]
            if lists:
                return _strings(lists[-1])
    return []


def _default(name: str, entry: ast.expr) -> str | None:
    """The text of the default, as written; None where there is none or it is computed."""
    for node in ast.walk(entry):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == name:
            rest = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "default")]
            if _called(node) in ("getenv", "get", "env_with_choices", "env_list_with_choices", "env_set_with_choices") and rest:
                value = rest[0]
                return (None if value.value is None else str(value.value)) if isinstance(value, ast.Constant) else ast.unparse(value)
    return None


def _version_default(entry: ast.expr) -> str | None:
    """`getenv(...).lower() or "12.9"`: what stands after `or`."""
    for node in ast.walk(entry):
        if isinstance(node, ast.BoolOp) and isinstance(node.values[-1], ast.Constant):
            return str(node.values[-1].value)
    return None


def variables(source: ast.Module) -> dict[str, dict[str, Any]]:
    """What `environment_variables` registers: default, accepted values, whether setting it is deprecated."""
    found: dict[str, dict[str, Any]] = {}
    for name, entry in _registered(source):
        default = _version_default(entry) if name == "VLLM_MAIN_CUDA_VERSION" else _default(name, entry)
        deprecated = any(_called(node).lstrip("_").startswith("deprecated") for node in ast.walk(entry))
        facts = {"default": default, "values": _values(entry) or None, "deprecated": deprecated or None}
        found[name] = {key: value for key, value in facts.items() if value is not None}
    return dict(sorted(found.items()))
