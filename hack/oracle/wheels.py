"""Wheels, their answers, and the committed tables."""

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oracle.tables import Answers, expand, merge, release, write
from oracle.trees import EMPTY, merge_trees

HACK = Path(__file__).resolve().parent.parent
DATA = HACK.parent / "operator/vllm_operator/catalog/data"
TABLES = DATA / "selectors"
COMPONENTS = ("attention", "prefill", "gemm", "moe")
"""Modules of this package; each has a table."""
TREES = frozenset({"attention", "moe"})
"""Components whose tables are trees, because their layers have many properties."""
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121")
OLDEST = "0.24.0"
"""The oldest version that can be asked. The selectors of older ones have other forms, and their tables do not change any more."""
SOURCES = Path.home() / ".cache/vllm-operator/wheels"
WANTED = re.compile(r"\.(py|json)$|\.dist-info/METADATA$")
FLASHINFER = re.compile(r"^Requires-Dist: flashinfer-python *\(?==([0-9a-z.]+)", re.MULTILINE)

PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(39, 16, -1)), "manylinux2014_x86_64", "manylinux1_x86_64")
"""Platforms of the wheels, which need not be that of this machine: only their Python files are used."""

Found = Mapping[str, Mapping[str, Answers]]
"""The answers of a version, by component and architecture."""


def fetch(package: str, version: str, sources: Path) -> Path:
    """The folder with the Python files of a wheel; it is downloaded once."""
    folder = sources / f"{package}-{version}"
    if not folder.exists():
        sources.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=sources) as temporary:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", temporary]
            platforms = [f"--platform={platform}" for platform in PLATFORMS]
            subprocess.run([*download, *platforms, "--python-version", "3.12", f"{package}=={version}"], check=True)
            part = Path(temporary, "files")
            with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
                wheel.extractall(part, [name for name in wheel.namelist() if WANTED.search(name)])
            part.rename(folder)
    return folder


def sources_of(version: str, sources: Path) -> tuple[Path, Path]:
    """The folders with the Python files of a version and of the FlashInfer that it needs."""
    vllm = fetch("vllm", version, sources)
    needed = FLASHINFER.search(next(vllm.glob("*.dist-info/METADATA")).read_text())
    if needed is None:
        raise SystemExit(f"vLLM {version} does not say which FlashInfer it needs")
    return vllm, fetch("flashinfer-python", needed[1], sources)


def ask(version: str, components: Sequence[str], python: str, sources: Path) -> Found:
    """Ask the selectors of a version; an architecture is absent if they could not be asked. Raises SystemExit before `OLDEST`."""
    if release(version) < release(OLDEST):
        raise SystemExit(f"vLLM {version} cannot be asked: only {OLDEST} and newer versions can")
    vllm, flashinfer = sources_of(version, sources)
    command = [python, "-m", "oracle.child", str(vllm), str(flashinfer), ",".join(components), *ARCHITECTURES]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(HACK)}, capture_output=True, text=True, check=False)
    answers: dict[str, dict[str, Answers]] = {component: {} for component in components}
    for found in map(json.loads, done.stdout.splitlines()):
        answers[found["component"]][found["architecture"]] = found["answers"]
    for component, by_architecture in answers.items():
        if missing := set(ARCHITECTURES) - by_architecture.keys():
            print(f"vLLM {version}: no answers about {component} for {', '.join(sorted(missing))}", file=sys.stderr)
            print(done.stderr[-2000:], file=sys.stderr)
    return answers


def load_tables(components: Iterable[str]) -> dict[str, Any]:
    files = {component: TABLES / f"{component}.json" for component in components}
    return {component: json.loads(file.read_text()) if file.exists() else EMPTY for component, file in files.items()}


def add(versions: Sequence[str], components: Sequence[str], python: str, sources: Path) -> None:
    """Ask the selectors of versions, and write what they answer into the tables; nothing if an architecture has none (SystemExit)."""
    found = {}
    for version in versions:
        found[version] = ask(version, components, python, sources)
        if any(len(answers) < len(ARCHITECTURES) for answers in found[version].values()):
            raise SystemExit(f"vLLM {version} did not answer everything; nothing is written")
        print(f"{version}: {len(ARCHITECTURES)} architectures", flush=True)
    TABLES.mkdir(exist_ok=True)
    for component, committed in load_tables(components).items():
        answers = {version: by_component[component] for version, by_component in found.items()}
        known = expand(committed) if committed is not EMPTY and component not in TREES else {}
        merged = merge_trees(answers, committed) if component in TREES else merge(known | answers)
        write(merged, TABLES / f"{component}.json")
