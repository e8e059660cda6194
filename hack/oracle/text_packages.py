"""Packages that are known by their text: what a module of theirs defines can be imported, and nothing of it runs."""

import ast
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class _Anything(type):
    """A class that can be a base, a decorator, an annotation or an attribute's owner, as importing needs it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_placeholder(name)

    def __getitem__(cls, parameters: Any) -> "_Anything":
        return cls

    def __contains__(cls, item: object) -> bool:
        return False


def make_placeholder(name: str) -> Any:
    """Something to import; calling it makes an object without behaviour."""
    methods = {
        "__init__": lambda self, *args, **kwargs: None,
        "__call__": lambda self, *args, **kwargs: self,
        "__index__": lambda self: 1,
        "__gt__": lambda self, other: False,
    }
    return _Anything(name, (), methods)


def names_of(source: str) -> set[str]:
    """The names that a module defines or imports at its top level, in branches too."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                pending.append(node)
    return found


class _Module(types.ModuleType):
    def __init__(self, name: str, names: set[str] | None) -> None:
        super().__init__(name)
        self._names = names
        self.__version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (self._names is not None and name not in self._names):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return make_placeholder(name)


class TextPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of a package by their text in a folder; `present` are modules without any, such as extensions, with all names."""

    def __init__(self, folder: Path, package: str, present: Sequence[str]) -> None:
        self._folder, self._package, self._present = folder, package, present

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not self._is_present(fullname) and (fullname.partition(".")[0] != self._package or self._file(fullname) is None):
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        spec.origin = str(self._file(fullname) or "a module without text")
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        file = None if self._is_present(spec.name) else self._file(spec.name)
        return _Module(spec.name, None if file is None else names_of(file.read_text()))

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing of it runs."""

    def _is_present(self, fullname: str) -> bool:
        return any(fullname == name or fullname.startswith(f"{name}.") for name in self._present)

    def _file(self, fullname: str) -> Path | None:
        candidates = (self._folder / f"{fullname.replace('.', '/')}{end}" for end in ("/__init__.py", ".py"))
        return next((file for file in candidates if file.is_file()), None)
