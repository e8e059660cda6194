"""Ask vLLM's selectors in many versions, and write the catalog's tables of their answers.

    python hack/oracle VERSION... [--components NAME...] [--python PYTHON] [--sources FOLDER] [--check]

`--python` is the interpreter of an environment with requirements/oracle.txt: PyTorch and what vLLM imports; `make check-oracle`
creates it. The wheels come from the package index, and only their Python files are kept, in `--sources`. `--check` writes
nothing and fails if an answer differs from the committed tables.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HACK = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HACK))

from oracle.tables import Answers, expand, merge, write  # noqa: E402  # the line above makes it importable
from oracle.trees import EMPTY, is_written, merge_trees  # noqa: E402

TABLES = HACK.parent / "operator/vllm_operator/catalog/data/selectors"
COMPONENTS = ("attention", "prefill", "gemm", "moe")
"""Modules of this package; each has a table."""
TREES = frozenset({"moe"})
"""Components whose tables are trees, because their layers have many properties."""
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121")
WANTED = re.compile(r"\.(py|json)$|\.dist-info/METADATA$")
FLASHINFER = re.compile(r"^Requires-Dist: flashinfer-python *\(?==([0-9a-z.]+)", re.MULTILINE)


def fetch(package: str, version: str, sources: Path) -> Path:
    """The folder with the Python files of a wheel; it is downloaded once."""
    folder = sources / f"{package}-{version}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=sources) as temporary:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", temporary]
            subprocess.run([*download, f"{package}=={version}"], check=True)
            part = Path(temporary, "files")
            with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
                wheel.extractall(part, [name for name in wheel.namelist() if WANTED.search(name)])
            part.rename(folder)
    return folder


def ask(version: str, components: Sequence[str], python: str, sources: Path) -> dict[str, dict[str, Answers]]:
    """All answers of a version, by component and architecture."""
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
            raise SystemExit(f"vLLM {version}: no answers about {component} for {', '.join(sorted(missing))}\n{done.stderr[-2000:]}")
    return answers


def _agrees(component: str, answers: Mapping[str, Answers], version: str, committed: Mapping[str, Any]) -> bool:
    """Whether the committed table says the same."""
    if component in TREES:
        return is_written(answers, version, committed)
    return bool(committed["versions"]) and expand(merge({version: answers}))[version] == expand(committed).get(version)


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--components", nargs="+", choices=COMPONENTS, default=COMPONENTS, metavar="NAME")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--sources", type=Path, default=Path.home() / ".cache/vllm-operator/wheels")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    arguments.sources.mkdir(parents=True, exist_ok=True)
    found = {}
    for version in arguments.versions:
        found[version] = ask(version, arguments.components, arguments.python, arguments.sources)
        print(f"{version}: {len(ARCHITECTURES)} architectures", flush=True)
    differing = []
    for component in arguments.components:
        table = TABLES / f"{component}.json"
        committed = json.loads(table.read_text()) if table.exists() else EMPTY
        answers = {version: by_component[component] for version, by_component in found.items()}
        if arguments.check:
            differing += [f"{version}, {component}" for version in found if not _agrees(component, answers[version], version, committed)]
            continue
        TABLES.mkdir(exist_ok=True)
        merged = merge_trees(answers, committed) if component in TREES else merge((expand(committed) if table.exists() else {}) | answers)
        write(merged, table)
    for name in differing:
        print(f"{name}: the answers differ from the committed table", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
