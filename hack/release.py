"""Build the files of a release: `make release`, or `make install-manifest` for install.yaml alone.

    dist/vllm_operator-VERSION-py3-none-any.whl, .tar.gz    the command line and the operator, for pip and pipx
    dist/vllm-operator-VERSION.tgz                          the chart
    dist/install.yaml                                       what the chart installs by default, as one file for kubectl
    dist/vllm-operator-VERSION.cdx.json                     the locked dependencies, as CycloneDX 1.6
    dist/vllm-operator-VERSION-olm-bundle.zip               the same for the Operator Lifecycle Manager
    dist/vllm.yaml, dist/kubectl-vllm-VERSION.zip           the plugin of krew
    dist/SHA256SUMS                                         the checksums of all of them

Needs helm. Publishing and signing are steps of .github/workflows/release.yaml.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import yaml
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

import catalogs
from testenv.binaries import BuildError, ensure_binaries
from testenv.toolchain import ToolchainError
from vllm_operator import __version__

ROOT = Path(__file__).parent.parent
CHART = ROOT / "charts" / "vllm-operator"
CHANGELOG = ROOT / "CHANGELOG.md"
LOCK = ROOT / "requirements" / "runtime.txt"
LOCK_OF_BUILD = ROOT / "requirements" / "build.txt"
DOCKERFILE = ROOT / "Dockerfile"
MACHINES = ("x86_64", "aarch64")
NEWEST_GLIBC = 36
"""Minor version of glibc in Debian 12, the older one of the bases that the image may have."""
NAME = "vllm-operator"
NAMESPACE = "vllm-system"
CHECKSUMS = "SHA256SUMS"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart", "helm.sh/resource-policy")
"""Labels and annotations that would be wrong in a cluster where Helm has installed nothing."""
HEADER = f"""\
# vllm-operator {{version}}: the CustomResourceDefinition, the permissions and the Deployment of the operator, in the namespace {NAMESPACE}.
#
#   kubectl apply --server-side -f install.yaml
#
# Rendered from the chart with its default values. To change values, install the chart.
# `kubectl delete -f install.yaml` deletes the CustomResourceDefinition too, and with it all VLLMDeployments.
"""


class ReleaseError(Exception):
    """The release cannot be built; the message says why."""


def notes(tag: str, *, version: str = __version__, changelog: str | None = None) -> str:
    """Return what the changelog says of a release. Raises ReleaseError without one, and for the tag of another version."""
    if tag != f"v{version}":
        raise ReleaseError(f"The tag {tag} is not v{version}, the version in operator/vllm_operator/__init__.py.")
    text = CHANGELOG.read_text("utf-8") if changelog is None else changelog
    found = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ReleaseError(f"CHANGELOG.md has no section {version}: rename the section Unreleased.")
    return found[1].strip() + "\n"


def manifests(digest: str = "") -> list[dict[str, Any]]:
    """Return what the chart installs by default, and its namespace."""
    rendered = _helm("template", NAME, CHART, "--namespace", NAMESPACE, *(("--set", f"image.digest={digest}") if digest else ()))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    return [namespace, *(_without_helm(manifest) for manifest in yaml.safe_load_all(rendered) if manifest)]


def install_manifest(digest: str = "") -> str:
    return HEADER.format(version=__version__) + yaml.safe_dump_all(manifests(digest), sort_keys=False, explicit_start=True, width=140)


def _without_helm(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_helm(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {key: _without_helm(item) for key, item in value.items() if key not in OF_HELM}
    return {key: item for key, item in kept.items() if key != "annotations" or item}


def bill_of_materials(lock: str) -> str:
    """Return the locked dependencies as CycloneDX: always the same text for the same lock and commit."""
    root = Component(name=NAME, version=__version__, type=ComponentType.APPLICATION, purl=_purl(NAME, __version__), bom_ref=NAME)
    components = list(_components(lock))
    # the identity and the time of the library's own would differ each time
    bom = Bom(components=components, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, hashlib.sha256(lock.encode()).hexdigest()))
    bom.metadata.component = root
    bom.metadata.timestamp = _committed_at()
    bom.register_dependency(root, components)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _components(lock: str) -> Iterator[Component]:
    for line in lock.splitlines():
        # the other lines are comments, and checksums of all files of a package
        if re.match(r"[A-Za-z0-9]", line):
            requirement = Requirement(line.removesuffix("\\"))
            [pin] = requirement.specifier
            purl = _purl(requirement.name, pin.version)
            yield Component(name=requirement.name, version=pin.version, purl=purl, bom_ref=str(purl))


def _purl(name: str, version: str) -> PackageURL:
    return PackageURL("pypi", name=name.lower(), version=version)


def checksums(files: Iterable[Path]) -> str:
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files))


def check_wheels(*options: str) -> None:
    """Check that all locked packages of the image have wheels for both of its platforms; `options` are further ones of pip.

    The Dockerfile compiles nothing, so a missing wheel is what can keep it from building for another CPU architecture.

    Raises:
        ReleaseError: A package has none.
    """
    found = re.search(r"^ARG BASE=\S+/python:(\d+\.\d+)", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise ReleaseError("The Dockerfile names no version of Python.")
    chosen = ("--python-version", found[1], "--implementation", "cp", "--only-binary=:all:", "--no-deps", "--require-hashes")
    for machine in MACHINES:
        platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC + 1)]
        platforms.append(f"--platform=manylinux2014_{machine}")
        for lock in (LOCK_OF_BUILD, LOCK):
            with tempfile.TemporaryDirectory() as folder:
                wanted = ["--quiet", "--dest", folder, "--requirement", str(lock)]
                _run([sys.executable, "-m", "pip", "download", *wanted, *chosen, *platforms, *options])


def build(folder: Path, *, digest: str = "") -> list[Path]:
    """Build all files of a release into a folder that has none of an earlier one; return them."""
    folder.mkdir(parents=True, exist_ok=True)
    if left := sorted(path.name for path in folder.iterdir()):
        raise ReleaseError(f"{folder} is not empty: remove {', '.join(left)}.")
    epoch = str(int(_committed_at().timestamp()))
    _run([sys.executable, "-m", "hatchling", "build", "--directory", str(folder)], SOURCE_DATE_EPOCH=epoch)
    _helm("package", CHART, "--destination", folder)
    (folder / "install.yaml").write_text(install_manifest(digest), "utf-8")
    with ZipFile(folder / f"{NAME}-{__version__}-olm-bundle.zip", "w", ZIP_DEFLATED) as archive:
        for path, text in catalogs.bundle(manifests(digest)).items():
            archive.writestr(ZipInfo(path), text)
    catalogs.krew_plugin(folder, __version__)
    (folder / f"{NAME}-{__version__}.cdx.json").write_text(bill_of_materials(LOCK.read_text("utf-8")), "utf-8")
    files = sorted(folder.iterdir())
    (folder / CHECKSUMS).write_text(checksums(files), "utf-8")
    return [*files, folder / CHECKSUMS]


def _committed_at() -> datetime:
    """Return the time of the commit, so that two builds of it are equal; now, outside of a checkout."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return datetime.fromtimestamp(int(done.stdout), UTC) if done.returncode == 0 and done.stdout.strip() else datetime.now(UTC)


def _helm(*arguments: str | Path) -> str:
    return _run([str(ensure_binaries(["helm"])["helm"]), *map(str, arguments)])


def _run(command: list[str], **environment: str) -> str:
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hack/release.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder (dist)")
    parser.add_argument("--digest", default="", help="the digest of the image, sha256:..., that install.yaml names instead of the tag")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--install-manifest", action="store_true", help="write only install.yaml")
    only.add_argument("--check-wheels", action="store_true", help="only check that the image can be built for amd64 and arm64")
    only.add_argument("--notes", metavar="TAG", help="print the notes of a release; fails if the tag is not of this version")
    options = parser.parse_args(arguments)
    if options.digest and not DIGEST.fullmatch(options.digest):
        parser.error(f"{options.digest} is not a digest: sha256: and 64 hexadecimal digits")
    try:
        if options.notes:
            print(notes(options.notes), end="")
        elif options.check_wheels:
            check_wheels()
            print(f"all locked packages have wheels for {' and '.join(MACHINES)}")
        elif options.install_manifest:
            options.output.mkdir(parents=True, exist_ok=True)
            (options.output / "install.yaml").write_text(install_manifest(options.digest), "utf-8")
            print(options.output / "install.yaml")
        else:
            check_wheels()
            for path in build(options.output, digest=options.digest):
                print(path)
    except (ReleaseError, BuildError, ToolchainError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
