"""Reads the variables, flags and names of backends of a build of vLLM from its sources: `read-build WHEEL|FOLDER`.

The folder may be an unpacked wheel, or contain an installed vLLM anywhere, as the root of an image does. The program prints one line, for
`catalog/builds.py`. The sources are untrusted: they are parsed as text and never imported, within limits of memory and time. A file that
cannot be read is left out; without variables or flags there is no table.
"""

import ast
import base64
import json
import os
import re
import resource
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from vllm_operator.tools.build import file_digest, package_folders

MARK = "vllm-operator-build "
FILE_LIMIT, NAMES_LIMIT, TABLE_LIMIT = 2 * 1024 * 1024, 1000, 256 * 1024
"""Maximum bytes of a file, names of one kind, and bytes of the result."""
CPU_SECONDS, MEMORY_BYTES = 120, 2 << 30
VARIABLES_FILE = "vllm/envs.py"
_ENTRYPOINT_MODULES = ("openai/cli_args", "launchers/cli_args", "common/cli_args", "cli/serve")
FLAG_FILES = ("vllm/engine/arg_utils.py", *(f"vllm/entrypoints/{name}.py" for name in _ENTRYPOINT_MODULES))
NEEDED = (VARIABLES_FILE, FLAG_FILES[0])
ENUMS = (
    ("attention", "vllm/platforms/interface.py", "_Backend"),
    ("attention", "vllm/attention/backends/registry.py", "_Backend"),  # since 0.11.1
    ("attention", "vllm/attention/backends/registry.py", "AttentionBackendEnum"),  # since 0.12
    ("attention", "vllm/v1/attention/backends/registry.py", "AttentionBackendEnum"),  # since 0.14
    ("mlaPrefill", "vllm/v1/attention/backends/mla/prefill/registry.py", "MLAPrefillBackendEnum"),
)
"""Enums of backends: the kind of their members, the module and the class."""
FIELD = "all2all_backend"  # of ParallelConfig; its values have had a name since 0.14
CONFIGS = {"attention-config": ("vllm/config/attention.py", "AttentionConfig"), "kernel-config": ("vllm/config/kernel.py", "KernelConfig")}
LITERALS = {"MoEBackend": "moe", "LinearBackend": "linear", "All2AllBackend": "all2all", "CacheDType": "kvCacheDtype", FIELD: "all2all"}
PARSER_FILE, OPPOSITES = "vllm/utils/argparse_utils.py", {"enable": "disable", "disable": "enable"}
"""A parser with the class EnableDisableAction (since 0.33) accepts `--disable-x` for `--enable-x`, and the other way round."""
NOT_NVIDIA = re.compile(r"^(ROCM|XPU|CPU|ZEN_CPU|PALLAS|IPEX|HPU|TORCH_XLA|AITER|FLYDSL|MORI|RDNA)", re.IGNORECASE)
_GETTERS = ("env_with_choices", "env_list_with_choices", "env_set_with_choices")

Found = TypeVar("Found")


class Sources:
    """The files of a build, read on demand. A file that cannot be read is left out."""

    def __init__(self, path: str) -> None:
        """Open a wheel or a folder. Raises ValueError."""
        try:
            self._top = zipfile.Path(path) if os.path.isfile(path) else Path(_find_package(os.path.abspath(path))).resolve()
            self._limit = os.path.commonpath([os.path.realpath(path), os.path.realpath(str(self._top))])
        except (OSError, NotImplementedError, zipfile.BadZipFile) as error:
            raise ValueError(f"it is neither a wheel nor a folder: {error}") from None

    def names(self, folder: str, suffix: str) -> list[str]:
        """Return the entries of a folder that have a suffix."""
        place = self._top / folder
        return sorted(each.name for each in place.iterdir() if each.name.endswith(suffix))[:NAMES_LIMIT] if place.is_dir() else []

    def find(self, name: str, search: Callable[..., Found], *arguments: Any) -> Found | None:
        """Return what a search finds in the syntax tree of a module; None if it does not exist, or cannot be read."""
        return self.read(name, lambda text: search(ast.parse(text), *arguments))

    def read(self, name: str, parse: Callable[[str], Found]) -> Found | None:
        """Return what a file contains; None if it does not exist, or cannot be read."""
        path = self._top / name
        try:
            if not path.is_file() or (isinstance(path, Path) and not path.resolve().is_relative_to(self._limit)):
                return None
            with path.open("rb") as file:
                data: bytes = file.read(FILE_LIMIT + 1)
            if len(data) > FILE_LIMIT:
                raise ValueError(f"it is larger than {FILE_LIMIT} bytes")
            return parse(data.decode())
        except Exception as error:  # of any kind: a hostile file must cost no more than itself
            print(f"{name} cannot be read: {type(error).__name__}: {error!s:.200}", file=sys.stderr)
            return None


def _find_package(top: str) -> str:
    """Return the folder that contains the package `vllm`: one of Python's, if this is the root of an image that runs. Raises ValueError."""
    folders, closed = package_folders() if top == "/" else [], list[str]()
    found = [folder for folder in (top, *folders) if all(os.path.isfile(os.path.join(folder, name)) for name in NEEDED)]
    for folder, names, _ in os.walk(top, onerror=lambda error: closed.append(error.filename)) if not found else ():
        if os.path.basename(folder) == "vllm" and all(os.path.isfile(os.path.join(folder, "..", name)) for name in NEEDED):
            found.append(os.path.dirname(folder))
        names[:] = [name for name in names if folder != "/" or name not in ("proc", "sys", "dev")]
    started = [folder for folder in found if os.path.lexists(os.path.join(folder, "../../../bin/vllm"))]
    ordered = sorted(started or found, key=lambda folder: folder.endswith("-packages"))
    builds = {tuple(file_digest(os.path.join(folder, name)) for name in NEEDED): folder for folder in ordered}
    if len(builds) > 1:
        raise ValueError(f"it contains several different builds of vLLM: {', '.join(sorted(builds.values())[:5])}")
    if builds:
        return builds.popitem()[1]
    hint = f" User {os.getuid()} may not read {', '.join(sorted(closed)[:5])}." if closed else ""
    raise ValueError(f"it contains no vLLM: is this a vLLM wheel, or a folder with one?{hint}")


def read_table(path: str) -> dict[str, Any]:
    """Return the table of a wheel or a folder: the content of a file in `catalog/data/versions`. Raises ValueError."""
    sources = Sources(path)
    known = sources.find(VARIABLES_FILE, _variables)
    if not known:
        raise ValueError(f"it contains no {VARIABLES_FILE} with variables: is this a vLLM wheel?")
    opposites = OPPOSITES if "EnableDisableAction" in (sources.read(PARSER_FILE, str) or "") else {}
    flags = [sources.find(name, _flags_in, opposites) or {} for name in FLAG_FILES]
    if not flags[0]:
        raise ValueError(f"it contains no {FLAG_FILES[0]} with flags")
    backends = {kind: names for kind, name, cls in ENUMS if (names := sources.find(name, _members, ast.Assign, cls))}
    for name in sources.names("vllm/config", ".py"):
        aliases = sources.find(f"vllm/config/{name}", _literals) or {}
        backends |= {LITERALS[alias]: values for alias, values in aliases.items() if alias in LITERALS}
    configs = {flag: sources.find(name, _members, ast.AnnAssign, cls) for flag, (name, cls) in CONFIGS.items()}
    metadata = _metadata(sources)
    version = metadata.partition("\nVersion: ")[2].partition("\n")[0].partition("+")[0].strip()  # without its local part
    if not re.fullmatch(r"\d{1,9}\.\d{1,9}[0-9A-Za-z.]{0,40}", version, re.ASCII):
        raise ValueError(f"it has no version that can be read: {version[:100]!r}")
    cuda = re.search(r"\d+\.\d+", str(known.get("VLLM_MAIN_CUDA_VERSION", {}).get("default", "")))
    needs = dict(re.findall(r"(?m)^Requires-Dist: ([\w-]+) *== *([0-9][^\s;,)]*) *$", metadata))
    bundle = {
        "cuda": cuda[0] if cuda else None,
        "torch": needs.get("torch"),
        "flashinfer": needs.get("flashinfer-python"),
        "flashinferCubins": "flashinfer-cubin" in needs,
        "deepGemm": bool(sources.names("vllm/third_party/deep_gemm", ".py")),
    }
    return {
        "version": version,
        "bundle": {key: value for key, value in bundle.items() if value is not None},
        "backends": {key: sorted(each for each in names if not NOT_NVIDIA.match(each)) for key, names in sorted(backends.items()) if names},
        "configs": {flag: fields for flag, fields in configs.items() if fields},
        "flags": dict(sorted({flag: others for found in flags for flag, others in found.items()}.items())),
        "variables": known,
    }


def _metadata(sources: Sources) -> str:
    """Return the metadata of the package that contains vLLM; without it, the version that its build wrote into a module."""
    written = re.search(r"(?m)^__version__ = .*(['\"])(.*)\1$", sources.read("vllm/_version.py", str) or "")
    version = f"\nVersion: {written[2] if written else ''}\n"
    folders = sources.names("", ".dist-info")
    named = [name for name in folders if name.startswith(("vllm-", "nvllm-"))]
    owners = named or [name for name in folders if f"\n{VARIABLES_FILE}," in f"\n{sources.read(f'{name}/RECORD', str)}"]
    texts = [(sources.read(f"{name}/METADATA", str) or version).partition("\n\n")[0] + "\n" for name in owners]
    return next((text for text in texts if version in text), (texts or [version])[-1])


def _strings(node: ast.AST) -> list[str]:
    return [str(leaf.value) for leaf in ast.walk(node) if isinstance(leaf, ast.Constant) and leaf.value is not None]


def _calls(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls within a node, with the last part of the name of the function."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            yield str(getattr(call.func, "attr", getattr(call.func, "id", ""))), call


def _assigned(source: ast.Module, *classes: str) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign]]:
    """Yield the names that a module, or classes in it, assign."""
    bodies = [node.body for node in source.body if isinstance(node, ast.ClassDef) and node.name in classes]
    for node in (node for body in (bodies if classes else [source.body]) for node in body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                yield target.id, node


def _literals(source: ast.Module) -> dict[str, list[str]]:
    """Return each `Name = Literal[...]` of a module, with the values of the names that it refers to."""
    found: dict[str, list[str]] = {}
    for name, node in (*_assigned(source), *_assigned(source, "ParallelConfig")):
        kind = getattr(node, "annotation", None) if name == FIELD else node.value
        if kind is not None and re.search(r"\b(Literal|Union)\[", ast.unparse(kind)):
            names = [leaf.id for leaf in ast.walk(kind) if isinstance(leaf, ast.Name) and leaf.id in found]
            found[name] = _strings(kind) + [item for other in names for item in found[other]]
            if len(found[name]) > NAMES_LIMIT:
                raise ValueError(f"{name} has more than {NAMES_LIMIT} values")
    return found


def _members(source: ast.Module, kind: type[ast.stmt], *classes: str) -> list[str]:
    """Return the members of enums (`Assign`), or the fields of dataclasses (`AnnAssign`)."""
    return sorted(name for name, node in _assigned(source, *classes) if isinstance(node, kind) and not name.startswith("_"))


def _flags_in(source: ast.Module, opposites: dict[str, str]) -> dict[str, list[str]]:
    """Return the flags of each `add_argument("--flag", ...)`, with their other spellings, and those made of fields of dataclasses."""
    found: list[tuple[list[str], bool]] = []
    for called, call in _calls(source):
        names = [str(arg.value) for arg in call.args if isinstance(arg, ast.Constant) and str(arg.value).startswith("-")]
        if called == "add_argument" and names:
            found.append((names, not any(each.arg == "action" and isinstance(each.value, ast.Constant) for each in call.keywords)))
    for name, node in _assigned(source, "BaseFrontendArgs", "FrontendArgs"):
        if isinstance(node, ast.AnnAssign) and not name.startswith("_"):
            found.append(([f"--{name.replace('_', '-')}"], "bool" in ast.unparse(node.annotation)))
    for names, is_bool in found:
        word, _, rest = names[0].lstrip("-").partition("-")
        names += [f"--{opposites[word]}-{rest}"] if is_bool and word in opposites else []
    return {names[0]: sorted(names[1:]) for names, _ in found}


def _values(entry: ast.expr) -> list[str]:
    given = ([*call.args, *(each.value for each in call.keywords)] for called, call in _calls(entry) if called in _GETTERS)
    lists = [each for values in given for each in values if isinstance(each, ast.List | ast.Tuple)]
    return _strings(lists[-1]) if lists else []


def _default(name: str, entry: ast.expr) -> str | None:
    """Return the default as written, or what stands after `or` in `getenv(...).lower() or "12.9"`; None if it is computed."""
    if name == "VLLM_MAIN_CUDA_VERSION":
        last = (node.values[-1] for node in ast.walk(entry) if isinstance(node, ast.BoolOp))
        return next((str(value.value) for value in last if isinstance(value, ast.Constant)), None)
    for called, call in _calls(entry):
        rest = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "default")]
        if rest and called in ("getenv", "get", *_GETTERS) and call.args and getattr(call.args[0], "value", None) == name:
            value = rest[0]
            return ast.unparse(value) if not isinstance(value, ast.Constant) else None if value.value is None else str(value.value)
    return None


def _variables(source: ast.Module) -> dict[str, dict[str, Any]]:
    """Return what `environment_variables` registers: default, accepted values, whether setting it is deprecated."""
    found: dict[str, dict[str, Any]] = {}
    tables = [node.value for name, node in _assigned(source) if name == "environment_variables" and isinstance(node.value, ast.Dict)]
    for key, entry in (pair for table in tables for pair in zip(table.keys, table.values, strict=True)):
        if isinstance(key, ast.Constant):
            deprecated = any(called.lstrip("_").startswith("deprecated") for called, _ in _calls(entry))
            facts = {"default": _default(str(key.value), entry), "values": _values(entry) or None, "deprecated": deprecated or None}
            found[str(key.value)] = {fact: value for fact, value in facts.items() if value is not None}
    return dict(sorted(found.items()))


def run(path: str) -> int:
    """Print the table of a wheel or a folder; return the exit status."""
    warnings.simplefilter("ignore")  # about strings in the sources
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        written = json.dumps(read_table(path)).encode()
        if len(written) > TABLE_LIMIT:
            raise ValueError(f"its table is larger than {TABLE_LIMIT} bytes")
    except (ValueError, OSError, MemoryError) as error:
        print(f"no vLLM that can be read below {path}: {error or type(error).__name__}", file=sys.stderr)
        return 1
    print(MARK + base64.b64encode(zlib.compress(written, 9)).decode())
    return 0
