"""Runs one of the programs: `python3 -I -B tools.pyz PROGRAM`.

`copy FOLDER` copies the archive itself, from the operator's image to a volume that the other containers of a Pod mount.
"""

import shutil
import sys
from importlib import import_module

MODULES = {
    "fetch-caches": "fetch",
    "pack-caches": "pack",
    "publish-caches": "publish",
    "clean-caches": "clean_caches",
    "fetch-weights": "fetch_weights",
    "fetch-adapters": "fetch_adapters",
}


def main() -> int:
    """Run the program that the first argument names; return its exit status."""
    match sys.argv[1:]:
        case ["copy", folder]:
            shutil.copy(sys.argv[0], folder)
            return 0
        case [name] if name in MODULES:
            status: int = import_module(f"vllm_operator.tools.{MODULES[name]}").main()
            return status
    print(f"usage: {sys.argv[0]} copy FOLDER | {' | '.join(MODULES)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
