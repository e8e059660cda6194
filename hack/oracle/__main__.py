"""Ask vLLM's selectors in many versions, and write the catalog's table of their answers.

    python hack/oracle VERSION... [--python PYTHON] [--sources FOLDER] [--check]

`--python` is the interpreter of an environment with requirements/oracle.txt: PyTorch and what vLLM imports; `make check-oracle`
creates it. The wheels come from the package index, and only their Python files are kept, in `--sources`. `--check` writes
nothing and fails if an answer differs from the committed table.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HACK = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HACK))

from oracle.tables import Answers, expand, merge, write  # noqa: E402  # the line above makes it importable

TABLE = HACK.parent / "operator/vllm_operator/catalog/data/selectors/attention.json"
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


def ask(version: str, python: str, sources: Path) -> dict[str, Answers]:
    """All answers of a version, by architecture."""
    vllm = fetch("vllm", version, sources)
    needed = FLASHINFER.search(next(vllm.glob("*.dist-info/METADATA")).read_text())
    if needed is None:
        raise SystemExit(f"vLLM {version} does not say which FlashInfer it needs")
    flashinfer = fetch("flashinfer-python", needed[1], sources)
    command = [python, "-m", "oracle.child", str(vllm), str(flashinfer), *ARCHITECTURES]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(HACK)}, capture_output=True, text=True, check=False)
    answers = {found["architecture"]: found["answers"] for found in map(json.loads, done.stdout.splitlines())}
    if missing := set(ARCHITECTURES) - answers.keys():
        raise SystemExit(f"vLLM {version}: no answers for {', '.join(sorted(missing))}\n{done.stderr[-2000:]}")
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--sources", type=Path, default=Path.home() / ".cache/vllm-operator/wheels")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    arguments.sources.mkdir(parents=True, exist_ok=True)
    committed = expand(json.loads(TABLE.read_text())) if TABLE.exists() else {}
    found: dict[str, dict[str, Answers]] = {}
    for version in arguments.versions:
        found[version] = ask(version, arguments.python, arguments.sources)
        print(f"{version}: {len(found[version])} architectures", flush=True)
    merged = merge(committed | found)
    if not arguments.check:
        TABLE.parent.mkdir(exist_ok=True)
        write(merged, TABLE)
        return 0
    differing = [version for version in found if expand(merged)[version] != committed.get(version)]
    for version in differing:
        print(f"{version}: the answers differ from the committed table", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
