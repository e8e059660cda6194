"""The last step of the image's build: leave out what the operator never loads, and write down what is in it.

    PREFIX/bin/python hack/image_contents.py PREFIX

The client library ships a typed model of every Kubernetes object and a method for every call, twice, 115 MB with their
byte code. The operator sends plain dictionaries. Of these modules only those stay that importing the operator loads;
everything else in the environment stays as it was installed.

The bill of materials, PREFIX/share/sbom.cdx.json, is CycloneDX 1.6: the operator, Python, the packages of the environment and
those of the base.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

PROGRAM = "vllm_operator.controller.app"
PACKAGE = "kubernetes"
DEBIAN = Path("/var/lib/dpkg/status")
"""The packages of the base; the last stage of the image begins with the same one."""
TYPED = ("client/api", "client/models", "aio/client/api", "aio/client/models")


def main(prefix: Path) -> int:
    removed = remove_unloaded(prefix)
    # a new process: this one has everything loaded already
    subprocess.run([sys.executable, "-c", f"import {PROGRAM}"], check=True)
    target = prefix / "share" / "sbom.cdx.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(bill_of_materials(), indent=1) + "\n", "utf-8")
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


def bill_of_materials(debian: Path = DEBIAN) -> dict[str, object]:
    components: list[dict[str, object]] = [
        {
            "type": "library",
            "name": distribution.metadata["Name"],
            "version": distribution.version,
            "purl": f"pkg:pypi/{distribution.metadata['Name'].lower().replace('_', '-')}@{distribution.version}",
            **({"licenses": [{"expression": expression}]} if expression else {}),
        }
        for distribution in importlib.metadata.distributions()
        for expression in [distribution.metadata.get("License-Expression")]  # type: ignore[attr-defined]  # typed since Python 3.12
    ]
    components += _of_the_base(debian)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "vllm-operator", "version": importlib.metadata.version("vllm-operator")}},
        "components": sorted(components, key=lambda component: str(component["purl"]).lower()),
    }


def _of_the_base(debian: Path) -> list[dict[str, object]]:
    version = platform.python_version()
    found: list[dict[str, object]] = [
        {"type": "application", "name": "python", "version": version, "purl": f"pkg:generic/python@{version}"}
    ]
    for entry in debian.read_text("utf-8").split("\n\n") if debian.exists() else []:
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", entry, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
            purl = f"pkg:deb/debian/{name}@{quote(version)}?arch={architecture}"
            found.append({"type": "library", "name": name, "version": version, "purl": purl})
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
