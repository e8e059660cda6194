"""Runs one of the programs: `python3 -I -B tools.pyz PROGRAM`.

`copy FOLDER` copies and unpacks the archive itself, from the operator's image to a volume that the other containers of a Pod mount.
`check-engine` is the readiness probe of the engine (`check_engine.py`). It runs unpacked, so that Python keeps its bytecode.
"""

import gc
import os
import sys

PROGRAMS = {
    "fetch-caches": ("fetch", "main"),
    "pack-caches": ("pack", "main"),
    "publish-caches": ("publish", "main"),
    "clean-caches": ("clean_caches", "main"),
    "measure": ("measure", "main"),
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
            shutil.unpack_archive(sys.argv[0], folder, "zip")
            return 0
        case ["check-engine", url, file, folder, stacks, action]:  # runs every 15 s, so it does as little as it can
            gc.disable()
            from vllm_operator.tools.check_engine import run

            failed = run(url, file, folder, stacks, restarts=action == "Restart")
            sys.stdout.flush()
            os._exit(failed)
        case ["read-build", path]:
            from vllm_operator.tools.vllm_build import run as read_build

            return read_build(path)
        case [name] if name in PROGRAMS:
            module, function = PROGRAMS[name]
            from importlib import import_module

            status: int = getattr(import_module(f"vllm_operator.tools.{module}"), function)()
            return status
    names = ("copy FOLDER", "check-engine URL FILE FOLDER STACKS Restart|Report", "read-build PATH", *PROGRAMS)
    print(f"usage: {sys.argv[0]} {' | '.join(names)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
