"""Whether there can be a node on this machine.

python -m nodeenv check       says why there cannot, with status 1
python -m nodeenv packages    the packages of Debian and Ubuntu that it needs
"""

import argparse
from collections.abc import Sequence

from nodeenv.node import PACKAGES, missing_requirements


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nodeenv", description="What a node on this machine needs")
    parser.add_argument("question", choices=("check", "packages"))
    if parser.parse_args(arguments).question == "packages":
        print(PACKAGES)
        return 0
    reason = missing_requirements()
    print(reason or "There can be a node on this machine.")
    return 1 if reason else 0


if __name__ == "__main__":
    raise SystemExit(main())
