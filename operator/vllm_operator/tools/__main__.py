"""Runs one of the programs: `python3 -I -B tools.pyz PROGRAM`, with arguments if the program takes some.

`copy FOLDER` copies the archive itself, from the operator's image to a volume that the other containers of a Pod mount.
"""

import sys

PROGRAMS = {
    "check-engine": ("check_engine", "main"),
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
            import shutil  # slow to import, and the readiness probe does not need it

            shutil.copy(sys.argv[0], folder)
            return 0
        case [name, *_] if name in PROGRAMS:
            module, function = PROGRAMS[name]
            found = __import__(f"vllm_operator.tools.{module}", fromlist=[function])  # the module importlib is slow to import
            status: int = getattr(found, function)()
            return status
    print(f"usage: {sys.argv[0]} copy FOLDER | {' | '.join(PROGRAMS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
