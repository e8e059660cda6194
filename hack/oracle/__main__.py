"""Ask vLLM which backends it takes: write the catalog's tables of its selectors' answers, or check plans.

    python hack/oracle [VERSION...] [--components NAME...] [--python PYTHON] [--sources FOLDER]
    python hack/oracle --check [VERSION...] [--seed N] [--count N] [--python PYTHON] [--sources FOLDER]

`--python` is the interpreter of an environment with requirements/oracle.txt: PyTorch and what vLLM imports; `make check-oracle`
creates it. The wheels come from the package index, and only their Python files are kept, in `--sources`.

`--check` writes nothing. It makes plans for the configurations in `models.yaml`, lets vLLM build each model with the flags and variables
of the plan, and fails if a layer takes another backend than the plan expects, if vLLM ends where there is a plan, or if it starts where
there is none. `allowed.yaml` has the exceptions, with reasons.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from oracle.wheels import COMPONENTS, SOURCES, add  # the line above makes it importable


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--components", nargs="+", choices=COMPONENTS, default=COMPONENTS, metavar="NAME")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--sources", type=Path, default=SOURCES)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seed", type=int, default=1, help="which cases are chosen")
    parser.add_argument("--count", type=int, default=200, help="number of cases")
    arguments = parser.parse_args()
    if arguments.check:
        from oracle.plans import VERSIONS, check  # needs the operator

        return check(arguments.versions or VERSIONS, arguments.seed, arguments.count, arguments.python, arguments.sources)
    if not arguments.versions:
        parser.error("name the versions to write")
    add(arguments.versions, arguments.components, arguments.python, arguments.sources)
    return 0


if __name__ == "__main__":
    sys.exit(main())
