"""Read a vLLM wheel and write what the operator must know of that version.

    python hack/ingest_vllm.py WHEEL... [--check]

A WHEEL (0.24 or newer) is a file from any package index, or a folder with what it holds. The result is a file of the catalog
(`catalog/data/versions`). The wheel is read as text and syntax trees and never imported, so neither a GPU nor the wheel's
dependencies are needed. `--check` writes nothing and fails on a difference.
"""

import argparse
import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from ingest_source import enum_members, field_names, flags_of_calls, flags_of_fields, literals, variables

DATA = Path(__file__).resolve().parent.parent / "operator/vllm_operator/catalog/data/versions"

ENUMS = {
    "attention": ("vllm/v1/attention/backends/registry.py", "AttentionBackendEnum"),
    "mlaPrefill": ("vllm/v1/attention/backends/mla/prefill/registry.py", "MLAPrefillBackendEnum"),
}
NOT_NVIDIA = re.compile(r"^(ROCM|XPU|CPU|ZEN_CPU|PALLAS|IPEX|HPU|TORCH_XLA|AITER|FLYDSL|MORI|RDNA)", re.IGNORECASE)
CONFIGS = {
    "attention-config": ("vllm/config/attention.py", "AttentionConfig"),
    "kernel-config": ("vllm/config/kernel.py", "KernelConfig"),
}
FLAG_FILES = (
    "vllm/engine/arg_utils.py",
    "vllm/entrypoints/openai/cli_args.py",
    "vllm/entrypoints/launchers/cli_args.py",
    "vllm/entrypoints/common/cli_args.py",
    "vllm/entrypoints/cli/serve.py",
)
LITERALS = {"MoEBackend": "moe", "LinearBackend": "linear", "All2AllBackend": "all2all", "CacheDType": "kvCacheDtype"}


class Wheel:
    """The source files of a wheel, read on demand. It may be unpacked in a folder."""

    def __init__(self, path: Path) -> None:
        self._root = path if path.is_dir() else zipfile.Path(path)
        if isinstance(self._root, Path):
            self._names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
        else:
            self._names = set(self._root.root.namelist())

    def _read(self, name: str) -> str:
        return (self._root / name).read_bytes().decode()

    def source(self, name: str) -> ast.Module | None:
        return ast.parse(self._read(name)) if name in self._names else None

    def sources(self, folder: str) -> Iterator[ast.Module]:
        for name in sorted(self._names):
            if re.fullmatch(rf"{re.escape(folder)}[^/]+\.py", name):
                yield ast.parse(self._read(name))

    def metadata(self) -> str:
        name = next(name for name in self._names if name.endswith(".dist-info/METADATA"))
        return self._read(name).partition("\n\n")[0]

    def has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self._names)


def _requirement(metadata: str, name: str) -> str | None:
    found = re.search(rf"(?m)^Requires-Dist: {name} *== *([0-9][^\s;,)]*) *$", metadata)
    return found[1] if found else None


def _backends(wheel: Wheel) -> dict[str, list[str]]:
    found = {key: enum_members(source, cls) for key, (name, cls) in ENUMS.items() if (source := wheel.source(name))}
    for source in wheel.sources("vllm/config/"):
        found |= {LITERALS[alias]: values for alias, values in literals(source).items() if alias in LITERALS}
    return {key: sorted(name for name in names if not NOT_NVIDIA.match(name)) for key, names in sorted(found.items())}


def _flags(wheel: Wheel) -> dict[str, list[str]]:
    flags: dict[str, list[str]] = {}
    for name in FLAG_FILES:
        if source := wheel.source(name):
            flags |= flags_of_calls(source) | flags_of_fields(source, ("BaseFrontendArgs", "FrontendArgs"))
    return dict(sorted(flags.items()))


def _version(path: Path, metadata: str) -> str:
    """The version without its local part. It becomes the name of a file, so it has to be one."""
    text = metadata.partition("\nVersion: ")[2].partition("\n")[0].partition("+")[0]
    try:
        Version(text)
    except InvalidVersion:
        raise SystemExit(f"{path} has no version that can be read: {text[:100]!r}") from None
    return text


def ingest(path: Path) -> dict[str, Any]:
    wheel = Wheel(path)
    metadata = wheel.metadata()
    envs = wheel.source("vllm/envs.py")
    if envs is None:
        raise SystemExit(f"{path} holds no vllm/envs.py: is this a vLLM wheel?")
    known = variables(envs)
    configs = {flag: field_names(source, cls) for flag, (name, cls) in CONFIGS.items() if (source := wheel.source(name))}
    cuda = re.search(r"\d+\.\d+", str(known.get("VLLM_MAIN_CUDA_VERSION", {}).get("default", "")))
    bundle = {
        "cuda": cuda[0] if cuda else None,
        "torch": _requirement(metadata, "torch"),
        "flashinfer": _requirement(metadata, "flashinfer-python"),
        "flashinferCubins": _requirement(metadata, "flashinfer-cubin") is not None,
        "deepGemm": wheel.has("vllm/third_party/deep_gemm/"),
    }
    return {
        "version": _version(path, metadata),
        "bundle": {key: value for key, value in bundle.items() if value is not None},
        "backends": _backends(wheel),
        "configs": configs,
        "flags": _flags(wheel),
        "variables": known,
    }


def add_classes(wheel: Wheel, version: str, known: dict[str, str]) -> dict[str, str]:
    """The first version that has each class of models, with the classes that are new in this wheel."""
    source = wheel.source("vllm/model_executor/models/registry.py") or ast.parse("")
    tables = [node for node in ast.walk(source) if isinstance(node, ast.Dict)]
    pairs = (pair for table in tables for pair in zip(table.keys, table.values, strict=True))
    names = {str(key.value) for key, value in pairs if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple)}
    return dict(sorted({**dict.fromkeys(names, version), **known}.items()))


def render(content: dict[str, Any]) -> str:
    """One line per variable and flag, so that a diff between versions can be read."""

    def block(value: Any) -> str:
        if not isinstance(value, dict) or not value:
            return json.dumps(value)
        lines = (f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
        return "{\n" + ",\n".join(lines) + "\n  }"

    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {block(value)}" for key, value in content.items()) + "\n}\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Read vLLM wheels and write what the operator must know of each version.")
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--check", action="store_true", help="compare with what is committed and write nothing")
    parser.add_argument("--output", type=Path, default=DATA, help="folder of the version files")
    arguments = parser.parse_args(argv)
    different = False
    for path in arguments.wheels:
        content = ingest(path)
        classes = arguments.output.parent / "model_classes.json"
        known = json.loads(classes.read_text()) if classes.exists() else {}
        found = add_classes(Wheel(path), content["version"], known)
        target = arguments.output / f"{content['version']}.json"
        text = render(content)
        same = target.exists() and target.read_text() == text and found == known
        if arguments.check:
            different |= not same
            print(f"{target.name}: {'as committed' if same else 'differs from what is committed'}")
        else:
            target.write_text(text)
            classes.write_text(json.dumps(found, indent=0) + "\n")
            print(f"{target.name}: {len(content['variables'])} variables, {len(content['flags'])} flags")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
