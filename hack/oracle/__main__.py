"""Ask vLLM's selectors in many versions, and write the catalog's tables of their answers.

    python hack/oracle [VERSION...] [--components NAME...] [--python PYTHON] [--sources FOLDER] [--check]

`--python` is the interpreter of an environment with requirements/oracle.txt: PyTorch and what vLLM imports; `make check-oracle`
creates it. The wheels come from the package index, and only their Python files are kept, in `--sources`.

`--check` writes nothing. It compares the committed tables with the wheels, with the rules, and with each other, and fails if there is a
difference that `allowed.yaml` has no reason for, or a reason there without a difference. Without a version, it asks all committed ones
from `wheels.OLDEST` on.
"""

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from oracle.checking import compare  # the line above makes it importable
from oracle.tables import release
from oracle.wheels import COMPONENTS, OLDEST, SOURCES, add, ask, committed_versions, load_tables


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--components", nargs="+", choices=COMPONENTS, default=COMPONENTS, metavar="NAME")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--sources", type=Path, default=SOURCES)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        known = [version for version in committed_versions() if release(version) >= release(OLDEST)]
        return _check(arguments.versions or known, arguments.components, arguments.python, arguments.sources)
    if not arguments.versions:
        parser.error("name the versions to write")
    add(arguments.versions, arguments.components, arguments.python, arguments.sources)
    return 0


if __name__ == "__main__":
    sys.exit(main())
