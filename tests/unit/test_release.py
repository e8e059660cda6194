"""A release: its files, their checksums, and the workflow that publishes and signs them."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import release
from release import ReleaseError, bill_of_materials, checksums, install_manifest, notes
from testenv.binaries import find_binary
from vllm_operator import __version__

ROOT = Path(__file__).parent.parent.parent
WORKFLOW = (ROOT / ".github" / "workflows" / "release.yaml").read_text("utf-8")
needs_helm = pytest.mark.skipif(find_binary("helm") is None, reason="there is no helm; `make testenv` builds it")

CHANGELOG = """\
# Changelog

## Unreleased

## 0.2.0 - 2026-12-01

### Added

- A thing.

## 0.1.0 - 2026-11-30

- The first.
"""


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    assert notes("v0.2.0", version="0.2.0", changelog=CHANGELOG) == "### Added\n\n- A thing.\n"
    assert notes("v0.1.0", version="0.1.0", changelog=CHANGELOG) == "- The first.\n"


@pytest.mark.parametrize(
    ("tag", "version", "says"),
    [
        ("v0.2.1", "0.2.0", "The tag v0.2.1 is not v0.2.0"),
        ("0.2.0", "0.2.0", "The tag 0.2.0 is not v0.2.0"),
        ("v0.3.0", "0.3.0", "CHANGELOG.md has no section 0.3.0"),
    ],
)
def test_a_tag_that_is_not_of_this_version_or_has_no_notes_is_refused(tag: str, version: str, says: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(says)):
        notes(tag, version=version, changelog=CHANGELOG)


def test_a_package_without_a_wheel_for_a_platform_of_the_image_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder with a wheel for amd64 only, instead of the index."""
    wheel = tmp_path / "kernels-1.0-cp313-cp313-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("kernels-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: kernels\nVersion: 1.0\n")
        archive.writestr("kernels-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp313-cp313-manylinux_2_28_x86_64\n")
        archive.writestr("kernels-1.0.dist-info/RECORD", "")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"kernels==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n", "utf-8")
    monkeypatch.setattr(release, "LOCK", lock)
    monkeypatch.setattr(release, "LOCK_OF_BUILD", lock)
    offline = ("--no-index", "--find-links", str(tmp_path))
    with pytest.raises(ReleaseError, match=r"aarch64(.|\n)*No matching distribution found for kernels==1.0"):
        release.check_wheels(*offline)
    monkeypatch.setattr(release, "MACHINES", ("x86_64",))
    release.check_wheels(*offline)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    release.build(folder)
    return folder


@needs_helm
def test_a_release_has_the_command_line_the_chart_the_manifest_and_the_bill_of_materials(built: Path) -> None:
    assert sorted(path.name for path in built.iterdir()) == sorted(
        [
            "SHA256SUMS",
            "install.yaml",
            f"kubectl-vllm-{__version__}.zip",
            "vllm.yaml",
            f"vllm-operator-{__version__}-olm-bundle.zip",
            f"vllm-operator-{__version__}.cdx.json",
            f"vllm-operator-{__version__}.tgz",
            f"vllm_operator-{__version__}-py3-none-any.whl",
            f"vllm_operator-{__version__}.tar.gz",
        ]
    )


@needs_helm
def test_the_checksums_are_those_of_all_files_and_coreutils_reads_them(built: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=built, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK\n") == len(list(built.iterdir())) - 1


@needs_helm
def test_the_wheel_runs_and_has_both_programs(built: Path, tmp_path: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    [programs] = tmp_path.glob("*.dist-info/entry_points.txt")
    assert set(re.findall(r"^([\w-]+) = ", programs.read_text("utf-8"), re.MULTILINE)) == {"vllm-operator", "kubectl-vllm"}
    # the wheel before the editable install
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    code = (
        "import vllm_operator, sys; from vllm_operator.__main__ import main; print(vllm_operator.__file__); sys.exit(main(['--version']))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert __version__ in done.stdout


@needs_helm
def test_the_source_distribution_has_the_package_with_its_data_and_no_tests(built: Path) -> None:
    [source] = built.glob("vllm_operator-*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "operator/vllm_operator/catalog/data/stages.yaml"} <= names
    assert not [name for name in names if name.startswith(("tests/", "hack/"))]


@needs_helm
def test_the_packaged_chart_has_the_version_of_the_operator(built: Path) -> None:
    with tarfile.open(built / f"vllm-operator-{__version__}.tgz") as archive:
        file = archive.extractfile("vllm-operator/Chart.yaml")
        assert file is not None
        chart = yaml.safe_load(file)
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@needs_helm
def test_a_second_build_is_equal_except_for_the_time_in_the_chart(built: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    release.build(again)
    first, second = (set((folder / "SHA256SUMS").read_text("utf-8").splitlines()) for folder in (built, again))
    assert {line.split("  ")[1] for line in first ^ second} <= {f"vllm-operator-{__version__}.tgz"}


@needs_helm
def test_files_of_an_earlier_release_are_never_released_again(tmp_path: Path) -> None:
    (tmp_path / "vllm_operator-0.0.1-py3-none-any.whl").touch()
    with pytest.raises(ReleaseError, match=r"remove vllm_operator-0\.0\.1"):
        release.build(tmp_path)


def manifests(text: str) -> list[dict[str, Any]]:
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


@needs_helm
def test_the_manifest_has_everything_in_its_namespace_and_nothing_that_only_helm_reads() -> None:
    text = install_manifest()
    found = manifests(text)
    assert [it["kind"] for it in found][:1] == ["Namespace"]
    assert {it["kind"] for it in found} >= {"CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Deployment"}
    assert {it["metadata"].get("namespace", "vllm-system") for it in found} == {"vllm-system"}
    assert "helm.sh" not in text
    assert "managed-by: Helm" not in text
    assert f"image: ghcr.io/vllm-operator/vllm-operator:{__version__}" in text


@needs_helm
def test_the_manifest_of_a_release_names_the_image_by_its_digest() -> None:
    digest = f"sha256:{'a' * 64}"
    assert f"image: ghcr.io/vllm-operator/vllm-operator@{digest}" in install_manifest(digest)


def test_what_is_no_digest_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        release.main(["--install-manifest", "--digest", "latest"])
    assert "latest is not a digest" in capsys.readouterr().err


def test_the_bill_of_materials_names_each_locked_dependency_once() -> None:
    lock = (ROOT / "requirements" / "runtime.txt").read_text("utf-8")
    bill = json.loads(bill_of_materials(lock))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    purls = [component["purl"] for component in bill["components"]]
    assert len(purls) == len(set(purls)) == len(re.findall(r"^[\w.-]+==", lock, re.MULTILINE))
    assert [purl for purl in purls if purl.startswith("pkg:pypi/uvloop@")]  # one with a marker
    [own] = [it for it in bill["dependencies"] if it["ref"] == "vllm-operator"]
    assert sorted(own["dependsOn"]) == sorted(purls)
    assert bill_of_materials(lock) == bill_of_materials(lock)


def test_checksums_are_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text("")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert checksums([tmp_path / "b", tmp_path / "a"]) == f"{empty}  a\n{empty}  b\n"


def test_the_image_of_a_release_is_built_for_both_architectures_with_its_bill_of_materials(tmp_path: Path) -> None:
    """`hack/image.sh` with the variables of the workflow and a builder that says what it is asked for."""
    job = yaml.safe_load(WORKFLOW)["jobs"]["image"]
    [step] = [step for step in job["steps"] if str(step.get("run", "")).startswith("make image")]
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$@"\n', "utf-8")
    docker.chmod(0o755)
    environment = os.environ | step["env"] | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["hack/image.sh", "example/image:1"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[:4] == ["buildx", "build", "--tag", "example/image:1"]
    for word in ("--push", "--sbom=true", "--provenance=mode=max", f"VERSION={__version__}"):
        assert word in words
    assert words[words.index("--platform") + 1] == "linux/amd64,linux/arm64"


def test_everything_published_is_signed_and_only_then_released() -> None:
    jobs = yaml.safe_load(WORKFLOW)["jobs"]
    assert jobs["files"]["needs"] == "image"
    assert jobs["pypi"]["needs"] == "files"
    scripts = {name: "\n".join(str(step.get("run", "")) for step in job["steps"]) for name, job in jobs.items()}
    assert "cosign sign --yes" in scripts["image"]
    files = scripts["files"]
    order = ["make release ", "cosign sign-blob --yes", "helm push", "cosign sign --yes", "gh release create"]
    assert [files.index(words) for words in order] == sorted(files.index(words) for words in order)
    # a wrong tag stops the first job before it publishes anything
    assert scripts["image"].index("make release-notes") < scripts["image"].index("make image")


def in_order(rules: list[Any]) -> list[str]:
    return sorted(json.dumps(rule, sort_keys=True) for rule in rules)


@needs_helm
def test_the_bundle_of_olm_has_what_the_chart_installs(built: Path, tmp_path: Path) -> None:
    """Each permission and the Deployment are in the ClusterServiceVersion, and no object is left without a place."""
    with zipfile.ZipFile(built / f"vllm-operator-{__version__}-olm-bundle.zip") as archive:
        archive.extractall(tmp_path)
    found = [yaml.safe_load(file.read_text("utf-8")) for file in (tmp_path / "manifests").iterdir()]
    [version] = [each for each in found if each["kind"] == "ClusterServiceVersion"]
    installed = [each for each in yaml.safe_load_all((built / "install.yaml").read_text("utf-8")) if each]
    strategy = version["spec"]["install"]["spec"]
    [deployment] = [each for each in installed if each["kind"] == "Deployment"]
    assert strategy["deployments"][0]["spec"] == deployment["spec"]
    granted = [rule for part in ("clusterPermissions", "permissions") for each in strategy[part] for rule in each["rules"]]
    bound = {each["roleRef"]["name"] for each in installed if each["kind"].endswith("Binding")}
    wanted = [
        rule
        for each in installed
        if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] in bound
        for rule in each["rules"]
    ]
    assert in_order(granted) == in_order(wanted)
    left = {each["kind"] for each in installed} - {each["kind"] for each in found}
    assert left == {"Namespace", "ServiceAccount", "Deployment", "ClusterRoleBinding", "Role", "RoleBinding"}
    owned = {crd["name"] for crd in version["spec"]["customresourcedefinitions"]["owned"]}
    assert owned == {each["metadata"]["name"] for each in found if each["kind"] == "CustomResourceDefinition"}
    assert json.loads(version["metadata"]["annotations"]["alm-examples"])[0]["kind"] == "VLLMDeployment"


@needs_helm
@pytest.mark.parametrize(("tool", "words"), [("uvx", "--quiet --from"), ("pipx", "run --spec")])
def test_the_plugin_of_krew_is_the_archive_of_its_manifest_and_runs_this_version(
    built: Path, tmp_path: Path, tool: str, words: str
) -> None:
    plugin = yaml.safe_load((built / "vllm.yaml").read_text("utf-8"))
    [platform] = plugin["spec"]["platforms"]
    archive = built / platform["uri"].rpartition("/")[2]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with zipfile.ZipFile(archive) as content:
        program = Path(content.extract(platform["bin"], tmp_path))
        program.chmod(content.getinfo(platform["bin"]).external_attr >> 16)
    runner = tmp_path / "bin" / tool
    runner.parent.mkdir()
    runner.write_text('#!/bin/sh\necho "$@"\n', "utf-8")
    runner.chmod(0o755)
    command = [str(program), "top", "-A"]
    done = subprocess.run(command, env={"PATH": str(runner.parent)}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{words} vllm-operator=={__version__} kubectl-vllm top -A\n"
    missing = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "install one of them" in missing.stderr
