"""Runs one of the programs: `python3 -I -B tools.pyz PROGRAM`.

`copy FOLDER` copies the archive itself, from the operator's image to a volume that the other containers of a Pod mount.
"""

import shutil
import sys
from importlib import import_module

PROGRAMS = {
    "fetch-caches": ("fetch", "main"),
    "pack-caches": ("pack", "main"),
    "publish-caches": ("publish", "main"),
    "clean-caches": ("clean_caches", "main"),
    "fetch-weights": ("hub", "main_weights"),
    "fetch-adapters": ("hub", "main_adapters"),
}
"""The module and the function of each program."""


def main() -> int:
    """Run the program that the first argument names; return its exit status."""
    match sys.argv[1:]:
        case ["copy", folder]:
            shutil.copy(sys.argv[0], folder)
            return 0
        case [name] if name in PROGRAMS:
            module, function = PROGRAMS[name]
            status: int = getattr(import_module(f"vllm_operator.tools.{module}"), function)()
            return status
    print(f"usage: {sys.argv[0]} copy FOLDER | {' | '.join(PROGRAMS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
