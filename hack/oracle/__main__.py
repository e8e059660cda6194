"""Ask vLLM's selectors in many versions, and write the catalog's tables of their answers.

    python hack/oracle [VERSION...] [--components NAME...] [--python PYTHON] [--sources FOLDER] [--check]

`--python` is the interpreter of an environment with requirements/oracle.txt: PyTorch and what vLLM imports; `make check-oracle`
creates it. The wheels come from the package index, and only their Python files are kept, in `--sources`.

`--check` writes nothing. It compares the committed tables with the wheels, with the rules, and with each other, and fails if there is a
difference that `allowed.yaml` has no reason for, or a reason there without a difference. Without a version, it asks all committed ones.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HACK = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HACK))

from oracle.differences import Difference, describe, load_allowed, stale, unexplained  # noqa: E402  # the line above makes it importable
from oracle.finding import ARCHITECTURES, TREES, find_changed, find_missing  # noqa: E402
from oracle.rules import find_contradicted  # noqa: E402
from oracle.tables import Answers, expand, merge, release, write  # noqa: E402
from oracle.trees import EMPTY, merge_trees  # noqa: E402

DATA = HACK.parent / "operator/vllm_operator/catalog/data"
TABLES = DATA / "selectors"
COMPONENTS = ("attention", "prefill", "gemm", "moe")
"""Modules of this package; each has a table."""
SOURCES = Path.home() / ".cache/vllm-operator/wheels"
WANTED = re.compile(r"\.(py|json)$|\.dist-info/METADATA$")
FLASHINFER = re.compile(r"^Requires-Dist: flashinfer-python *\(?==([0-9a-z.]+)", re.MULTILINE)

Found = Mapping[str, Mapping[str, Answers]]
"""The answers of a version, by component and architecture."""


def fetch(package: str, version: str, sources: Path) -> Path:
    """The folder with the Python files of a wheel; it is downloaded once."""
    folder = sources / f"{package}-{version}"
    if not folder.exists():
        sources.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=sources) as temporary:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", temporary]
            subprocess.run([*download, f"{package}=={version}"], check=True)
            part = Path(temporary, "files")
            with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
                wheel.extractall(part, [name for name in wheel.namelist() if WANTED.search(name)])
            part.rename(folder)
    return folder


def ask(version: str, components: Sequence[str], python: str, sources: Path) -> Found:
    """Ask the selectors of a version; an architecture is absent if they could not be asked."""
    vllm = fetch("vllm", version, sources)
    needed = FLASHINFER.search(next(vllm.glob("*.dist-info/METADATA")).read_text())
    if needed is None:
        raise SystemExit(f"vLLM {version} does not say which FlashInfer it needs")
    flashinfer = fetch("flashinfer-python", needed[1], sources)
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
    """The committed tables by component."""
    files = {component: TABLES / f"{component}.json" for component in components}
    return {component: json.loads(file.read_text()) if file.exists() else EMPTY for component, file in files.items()}


def committed_versions() -> list[str]:
    """The versions that the catalog has, the oldest first."""
    return sorted((file.stem for file in (DATA / "versions").glob("*.json")), key=release)


def compare(asked: Mapping[str, Found], tables: Mapping[str, Any]) -> tuple[list[Difference], list[str]]:
    """All differences, and what to say about those without a reason and reasons without a difference.

    Args:
        asked: The answers of the wheels, by version and component.
        tables: The committed tables by component.
    """
    versions, found = committed_versions(), []
    for component, table in tables.items():
        for version, answers in asked.items():
            if component in answers:
                found += find_changed(component, version, answers[component], table)
        found += [*find_missing(component, table, versions), *find_contradicted(component, table)]
    lines = [line for line in load_allowed() if line.component in tables]
    problems = describe(unexplained(found, lines))
    problems += [
        f"allowed.yaml has a line that covers nothing any more; remove it: {line}" for line in stale(lines, found, versions, asked)
    ]
    return found, problems


def _check(versions: Sequence[str], components: Collection[str], python: str, sources: Path) -> int:
    tables = load_tables(components)
    asked = {}
    for version in versions:
        having = [component for component, table in tables.items() if version in table["versions"]]
        if having:
            asked[version] = ask(version, having, python, sources)
            print(f"{version}: asked about {', '.join(having)}", flush=True)
    found, problems = compare(asked, tables)
    print("\n".join(problems), file=sys.stderr)
    print(f"{len(asked)} versions asked, {len(found)} differences, {len(problems)} lines without an explanation")
    return 1 if problems else 0


def _write(versions: Sequence[str], components: Sequence[str], python: str, sources: Path) -> int:
    found = {}
    for version in versions:
        found[version] = ask(version, components, python, sources)
        if any(len(answers) < len(ARCHITECTURES) for answers in found[version].values()):
            return 1
        print(f"{version}: {len(ARCHITECTURES)} architectures", flush=True)
    TABLES.mkdir(exist_ok=True)
    for component, committed in load_tables(components).items():
        answers = {version: by_component[component] for version, by_component in found.items()}
        known = expand(committed) if committed is not EMPTY and component not in TREES else {}
        merged = merge_trees(answers, committed) if component in TREES else merge(known | answers)
        write(merged, TABLES / f"{component}.json")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--components", nargs="+", choices=COMPONENTS, default=COMPONENTS, metavar="NAME")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--sources", type=Path, default=SOURCES)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        return _check(arguments.versions or committed_versions(), arguments.components, arguments.python, arguments.sources)
    if not arguments.versions:
        parser.error("name the versions to write")
    return _write(arguments.versions, arguments.components, arguments.python, arguments.sources)


if __name__ == "__main__":
    sys.exit(main())
