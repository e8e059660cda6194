"""The last step of the image's build: leave out what the operator never loads.

    PREFIX/bin/python hack/image_contents.py PREFIX

The client library ships a typed model of every Kubernetes object and a method for every call, twice, 115 MB with their
byte code. The operator sends plain dictionaries. Of these modules only those stay that importing the operator loads;
everything else in the environment stays as it was installed.
"""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

PROGRAM = "vllm_operator.controller.app"
PACKAGE = "kubernetes"
TYPED = ("client/api", "client/models", "aio/client/api", "aio/client/models")


def main(prefix: Path) -> int:
    removed = remove_unloaded(prefix)
    # a new process: this one has everything loaded already
    subprocess.run([sys.executable, "-c", f"import {PROGRAM}"], check=True)
    print(f"{removed / 1e6:.0f} MB of modules that are never loaded were left out")
    return 0


def remove_unloaded(prefix: Path) -> int:
    """Remove the typed modules that the program does not load; return their size in bytes.

    Ends the program if the environment that it runs in is not the one below `prefix`: nobody's own is to be changed.
    """
    importlib.import_module(PROGRAM)
    loaded = {str(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)}
    specification = importlib.util.find_spec(PACKAGE)
    assert specification is not None
    assert specification.origin is not None
    root = Path(specification.origin).parent
    if not root.resolve().is_relative_to(prefix.resolve()):
        sys.exit(f"{root} is not in {prefix}: this changes the environment that it runs in, and is for the build of the image")
    size = 0
    for folder in TYPED:
        for source in (root / folder).glob("*.py"):
            if str(source) in loaded or source.name == "__init__.py":
                continue
            for path in (source, *(source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")):
                size += path.stat().st_size
                path.unlink()
    return size


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
