"""The last step of the image's build: leave out what the operator never loads, and write down what is in it.

    PREFIX/bin/python hack/image_contents.py PREFIX

The client library ships a typed model of every Kubernetes object and a method for every call, twice, 115 MB with their
byte code. The operator sends plain dictionaries. Of these modules only those stay that importing the operator loads;
everything else in the environment stays as it was installed.

The bill of materials, PREFIX/share/sbom.cdx.json, is CycloneDX 1.6.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

PROGRAM = "vllm_operator.app"
PACKAGE = "kubernetes"
TYPED = ("client/api", "client/models", "aio/client/api", "aio/client/models")


def main(prefix: Path) -> int:
    removed = remove_unloaded()
    # a new process: this one has everything loaded already
    subprocess.run([sys.executable, "-c", f"import {PROGRAM}"], check=True)
    target = prefix / "share" / "sbom.cdx.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(bill_of_materials(), indent=1) + "\n", "utf-8")
    print(f"{removed / 1e6:.0f} MB of modules that are never loaded were left out")
    return 0


def remove_unloaded() -> int:
    """Remove the typed modules that the program does not load; return their size in bytes."""
    importlib.import_module(PROGRAM)
    loaded = {str(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)}
    specification = importlib.util.find_spec(PACKAGE)
    assert specification is not None
    assert specification.origin is not None
    root = Path(specification.origin).parent
    size = 0
    for folder in TYPED:
        for source in (root / folder).glob("*.py"):
            if str(source) in loaded or source.name == "__init__.py":
                continue
            for path in (source, *(source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")):
                size += path.stat().st_size
                path.unlink()
    return size


def bill_of_materials() -> dict[str, object]:
    """All distributions of this environment, as CycloneDX."""
    components = [
        {
            "type": "library",
            "name": distribution.metadata["Name"],
            "version": distribution.version,
            "purl": f"pkg:pypi/{distribution.metadata['Name'].lower().replace('_', '-')}@{distribution.version}",
            **_licenses(distribution.metadata.get("License-Expression")),
        }
        for distribution in importlib.metadata.distributions()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": sorted(components, key=lambda component: str(component["name"]).lower()),
    }


def _licenses(expression: str | None) -> dict[str, object]:
    return {"licenses": [{"expression": expression}]} if expression else {}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
