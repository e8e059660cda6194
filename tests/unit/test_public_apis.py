"""The product uses other packages by their public names alone, and changes nothing in them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import vllm_operator

OWN = "vllm_operator"
PRODUCT = Path(vllm_operator.__file__).parent
DOCUMENTED = frozenset({"_replace", "_asdict", "_fields", "_make", "_exit"})
"""Documented names that begin with an underscore, of `typing.NamedTuple` and `os`."""


def is_private(name: str) -> bool:
    return name not in DOCUMENTED and name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def is_own(module: str | None) -> bool:
    return (module or "").partition(".")[0] == OWN


def foreign_names(tree: ast.Module) -> set[str]:
    """Names that a module imports from other packages and the standard library."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names if not is_own(alias.name)}
        elif isinstance(node, ast.ImportFrom) and not node.level and not is_own(node.module):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def own_names(tree: ast.Module) -> set[str]:
    """Names that a module defines: functions, variables, and attributes of its classes."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root_of(node) in ("self", "cls"):
            names.add(node.attr)
    return names


def root_of(node: ast.expr) -> str | None:
    """The name with which a chain of attributes and subscripts begins."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def find(source: str) -> Iterator[str]:
    """What a module uses of other packages that is not public, and what it replaces there."""
    tree = ast.parse(source)
    foreign, own = foreign_names(tree), own_names(tree)
    for node in ast.walk(tree):
        line = f"line {getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names):
                imported = [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names):
                imported = [f"{module}.{alias.name}" for alias in names]
            case _:
                imported = []
        for name in imported:
            if not is_own(name) and any(is_private(part) for part in name.split(".")):
                yield f"{line} imports the private name {name}"
            if name.partition(".")[0] == "ctypes" or name == "sys.modules":
                yield f"{line} imports {name}"
        match node:
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                yield f"{line} uses sys.modules"
            case ast.Attribute(attr=attribute) if is_private(attribute) and (root_of(node) in foreign or attribute not in own):
                yield f"{line} uses the private name {attribute}"
            case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=attribute) if root_of(node) in foreign:
                yield f"{line} replaces {ast.unparse(node)}"
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]) if root_of(target) in foreign:
                yield f"{line} replaces an attribute of {ast.unparse(target)}"


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("import kopf._cogs.clients", "imports the private name"),
        ("from kopf._cogs.clients import auth", "imports the private name"),
        ("from kopf import _kits", "imports the private name"),
        ("import json\njson._default_decoder", "uses the private name _default_decoder"),
        ("import json as j\n_decoder = 1\nj._decoder", "uses the private name _decoder"),
        ("def f(session): return session._connector", "uses the private name _connector"),
        ("import ssl\nssl.SSLContext.set_default_verify_paths = None", "replaces ssl.SSLContext.set_default_verify_paths"),
        ("from kopf import on\ndel on.event", "replaces on.event"),
        ("import kopf\nsetattr(kopf, 'run', None)", "replaces an attribute of kopf"),
        ("import sys\nsys.modules['kubernetes.client'] = None", "uses sys.modules"),
        ("from sys import modules", "imports sys.modules"),
        ("import ctypes", "imports ctypes"),
        ("from ctypes import CDLL", "imports ctypes"),
    ],
)
def test_what_is_not_public_is_found(source: str, finding: str) -> None:
    assert finding in "; ".join(find(source))


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations",
        "from vllm_operator.text import _lines",
        "class A:\n    def __init__(self): self._x = 1\n    def same(self, other): return other._x",
        "def f(pair): return pair._replace(a=1)",
        "import kopf\nsettings = kopf.OperatorSettings()\nsettings.posting.enabled = False",
        "import aiohttp\naiohttp.__version__",
    ],
)
def test_what_is_public_or_our_own_is_not_found(source: str) -> None:
    assert list(find(source)) == []


@pytest.mark.parametrize("path", sorted(PRODUCT.rglob("*.py")), ids=lambda path: str(path.relative_to(PRODUCT)))
def test_the_product_uses_public_apis_only(path: Path) -> None:
    assert list(find(path.read_text("utf-8"))) == []
