"""Fetching from a registry: accounts, redirects, failures, and what is left on the volume."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.artifacts import FOLDERS, archive, fill
from support.registries import (
    ACCOUNT,
    BASE,
    REPOSITORY,
    TAG,
    ArtifactBench,
    FakeRegistry,
    image_of,
    manifest_of,
    put_an_image_of_somebody_else,
    run_registry,
)
from vllm_operator.tools import build, fetch
from vllm_operator.tools.artifact import LABEL, sha256_of
from vllm_operator.tools.pack import Packed
from vllm_operator.tools.registry import read_account


def test_an_empty_directory_is_filled_once_and_then_left_alone(
    artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry
) -> None:
    status, result = artifact_bench.fetch()
    assert (status, result["result"], result["digest"], result["tag"]) == (0, "Fetched", sha256_of(manifest_of(packed)), TAG)
    assert (result["files"], result["bytes"]) == (packed.files, packed.size)
    assert artifact_bench.left() == {*FOLDERS, ".vllm-operator-key", ".vllm-operator-artifact"}
    asked = len(registry.requests)
    digest = sha256_of(manifest_of(packed))
    assert artifact_bench.fetch() == (0, {"result": "Present", "digest": digest, "tag": TAG, "seconds": pytest.approx(0, abs=5)})
    assert len(registry.requests) == asked


def test_a_directory_that_starts_have_filled_is_left_alone(artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry) -> None:
    fill(artifact_bench.root, {"triton/own": b"own"})
    status, result = artifact_bench.fetch(required=True)
    assert (status, result["result"], result["message"]) == (0, "Present", "The directory already has triton.")
    assert registry.requests == []


def test_a_pod_that_was_killed_half_way_is_completed_by_the_next(artifact_bench: ArtifactBench, packed: Packed) -> None:
    fill(artifact_bench.root, {"triton/AAAA/kernel.json": b"of the first Pod"})
    fetch.write_state(str(artifact_bench.root), {"state": "Installing"})
    stale = artifact_bench.root / f"{fetch.STAGING}old"
    stale.mkdir()
    os.utime(stale, (0, 0))
    assert artifact_bench.fetch()[1]["result"] == "Fetched"
    assert (artifact_bench.root / "triton/AAAA/kernel.json").read_bytes() == b"of the first Pod"
    assert (artifact_bench.root / "vllm").is_dir()
    assert not stale.exists()


def test_only_the_first_half_of_the_key_matches(artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry) -> None:
    status, result = artifact_bench.fetch(settings="b" * 12)
    assert (status, result["result"], result["tag"]) == (0, "PartlyFetched", BASE)


def test_a_pinned_artifact_of_another_build_is_refused_with_what_differs(
    artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry
) -> None:
    reference = f"{registry.host}/{REPOSITORY}@{sha256_of(manifest_of(packed))}"
    assert artifact_bench.fetch(reference=reference)[1]["result"] == "Fetched"
    for name in artifact_bench.left() - {".vllm-operator-key"}:
        path = artifact_bench.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    status, result = artifact_bench.fetch(reference=reference, parts={"product": "H100"})
    assert (status, result["result"]) == (0, "Mismatch")
    assert BASE in result["message"]
    assert artifact_bench.left() == {".vllm-operator-key"}


def test_a_rejected_digest_is_not_taken_again(artifact_bench: ArtifactBench, packed: Packed) -> None:
    assert artifact_bench.fetch(rejected=[sha256_of(manifest_of(packed))])[1]["result"] == "Rejected"
    assert artifact_bench.left() == {".vllm-operator-key"}


def _other_layer(registry: FakeRegistry, packed: Packed) -> None:
    registry.blobs[packed.layer_digest] = archive(("io.vllm.cache/x", b"x"))


def _damaged_layer(registry: FakeRegistry, packed: Packed) -> None:
    registry.blobs[packed.layer_digest] = registry.blobs[packed.layer_digest][:-20] + bytes(20)


def _other_config(registry: FakeRegistry, packed: Packed) -> None:
    registry.blobs[sha256_of(packed.config)] = packed.config.replace(b"base", b"ease")


def _a_cut_blob(registry: FakeRegistry, packed: Packed) -> None:
    registry.cut = 1000


def _no_layer(registry: FakeRegistry, packed: Packed) -> None:
    registry.blobs.pop(packed.layer_digest, None)


def _no_json(registry: FakeRegistry, packed: Packed) -> None:
    registry.manifests[TAG] = b"[" * 5000


def _a_manifest_of_mebibytes(registry: FakeRegistry, packed: Packed) -> None:
    registry.manifests[TAG] = b" " * (2 * 2**20)


def _a_wrong_size(registry: FakeRegistry, packed: Packed) -> None:
    labels = json.loads(packed.config)["config"]["Labels"] | {"cache.vllm.image/cache-size-bytes": "1"}
    plain = json.loads(packed.config)["rootfs"]["diff_ids"][0]
    config, manifest = image_of(labels, layer=(packed.layer_digest, packed.layer_size, plain))
    registry.blobs[sha256_of(config)] = config
    registry.manifests[TAG] = manifest


def _more_than_the_volume(registry: FakeRegistry, packed: Packed) -> None:
    labels = json.loads(packed.config)["config"]["Labels"] | {"cache.vllm.image/cache-size-bytes": str(10**14)}
    config, manifest = image_of(labels, layer=(packed.layer_digest, packed.layer_size, "sha256:0"))
    registry.blobs[sha256_of(config)] = config
    registry.manifests[TAG] = manifest


def _too_busy(registry: FakeRegistry, packed: Packed) -> None:
    registry.failing, registry.retry_after = {"/v2/": [429] * 9}, "15"


FAILURES = {
    "the registry refuses": (lambda registry, _: registry.failing.update({"/manifests/": [403]}), "Denied"),
    "the registry wants an account": (lambda registry, _: setattr(registry, "account", "Basic eA=="), "SecretMissing"),
    "the registry is down": (lambda registry, _: registry.failing.update({"/v2/": [503] * 9}), "Unreachable"),
    "the registry is busy for longer than the deadline": (
        _too_busy,
        "DeadlineExceeded",
    ),
    "there is no such tag": (lambda registry, _: registry.manifests.clear(), "NotFound"),
    "the layer is missing": (_no_layer, "NotFound"),
    "the layer is another one": (_other_layer, "Rejected"),
    "the layer is damaged": (_damaged_layer, "Rejected"),
    "the layer is truncated": (_a_cut_blob, "Unreachable"),
    "the configuration is another one": (_other_config, "Rejected"),
    "the image is no cache": (put_an_image_of_somebody_else, "Rejected"),
    "the manifest is no manifest": (_no_json, "Rejected"),
    "the manifest is too large": (_a_manifest_of_mebibytes, "Rejected"),
    "the label has another size": (_a_wrong_size, "Rejected"),
    "the volume is too small": (_more_than_the_volume, "NoSpace"),
}


@pytest.mark.parametrize(("spoil", "reason"), FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_leaves_nothing_behind_and_only_fails_where_the_artifact_is_required(
    artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry, spoil: Any, reason: str
) -> None:
    if reason != "SecretMissing":
        artifact_bench.log_in()
    spoil(registry, packed)
    status, result = artifact_bench.fetch(deadline=1)
    assert (status, result["result"]) == (0, reason), result
    assert result["seconds"] < 10
    assert artifact_bench.left() == {".vllm-operator-key"}
    spoil(registry, packed)
    registry.blobs.pop(packed.layer_digest, None)
    assert artifact_bench.fetch(deadline=1, required=True)[0] == 1


def test_nobody_listens(artifact_bench: ArtifactBench) -> None:
    status, result = artifact_bench.fetch(repository="127.0.0.1:9/team/caches")
    assert (status, result["result"]) == (0, "Unreachable")


def test_a_full_volume_is_reported_as_such(artifact_bench: ArtifactBench, packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "unpack_layer", full)
    assert artifact_bench.fetch()[1]["result"] == "NoSpace"
    assert artifact_bench.left() == {".vllm-operator-key"}


def test_two_pods_at_once_share_what_one_of_them_installs(
    artifact_bench: ArtifactBench, packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = fetch.install

    def late(staging: int, root: int) -> None:
        fill(artifact_bench.root, {"triton/AAAA/kernel.json": b"of the other Pod"})
        install(staging, root)

    monkeypatch.setattr(fetch, "install", late)
    assert artifact_bench.fetch()[1]["result"] == "Fetched"
    assert (artifact_bench.root / "triton/AAAA/kernel.json").read_bytes() == b"of the other Pod"
    assert artifact_bench.left() == {*FOLDERS, ".vllm-operator-key", ".vllm-operator-artifact"}


@pytest.mark.parametrize("bearer", ["", "t0ken"], ids=["basic", "by a token"])
def test_an_account_of_the_secret_is_used(artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry, bearer: str) -> None:
    registry.account, registry.bearer = ACCOUNT, bearer
    artifact_bench.log_in()
    assert artifact_bench.fetch()[1]["result"] == "Fetched"
    assert registry.requests[0][2] == ""
    tokens = [path for _, path, _ in registry.requests if path.startswith("/token")]
    assert tokens == ([f"/token?service=it&scope=repository%3A{REPOSITORY.replace('/', '%2F')}%3Apull"] if bearer else [])


def test_a_token_that_has_expired_is_replaced(artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry) -> None:
    registry.account, registry.bearer, registry.is_bearer_short = ACCOUNT, "t0ken", True
    artifact_bench.log_in()
    assert artifact_bench.fetch()[1]["result"] == "Fetched"
    served = [path for _, path, authorization in registry.requests if path.startswith("/v2/") and authorization]
    assert len([path for _, path, _ in registry.requests if path.startswith("/token")]) == len({*served}) > 1


def test_a_wrong_account_is_denied(artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry) -> None:
    registry.account = "Basic eDp5"
    artifact_bench.log_in()
    assert artifact_bench.fetch()[1]["result"] == "Denied"


def test_credentials_do_not_follow_a_redirect(artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry) -> None:
    registry.account = ACCOUNT
    artifact_bench.log_in()
    with run_registry() as other:
        other.blobs, other.account = registry.blobs, ""
        registry.redirect = f"http://{other.host}"
        assert artifact_bench.fetch()[1]["result"] == "Fetched"
        assert {authorization for _, _, authorization in other.requests} == {""}
        assert other.requests


def test_a_redirect_to_another_scheme_is_not_followed(artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry) -> None:
    registry.redirect = "ftp://127.0.0.1:9"
    result = artifact_bench.fetch()[1]
    assert (result["result"], result["message"]) == ("Unreachable", "The registry redirects to an address without TLS.")


@pytest.mark.parametrize(
    ("auths", "expected"),
    [
        ({"https://registry.example": {"auth": "YTpi"}}, "YTpi"),
        ({"registry.example": {"username": "a", "password": "b"}}, "YTpi"),
        ({"registry.example/v2/": {"auth": "YTpi"}}, "YTpi"),
        ({"registry.example": {"auth": "eDp5"}, "registry.example/team": {"auth": "YTpi"}}, "YTpi"),
        ({"registry.example/teams": {"auth": "YTpi"}}, ""),
        ({"other.example": {"auth": "YTpi"}}, ""),
        ({"registry.example": {"auth": "x\r\nHost: other"}}, ""),
        ({"registry.example": None}, ""),
        (["registry.example"], ""),
    ],
)
def test_the_account_for_a_repository(tmp_path: Path, auths: Any, expected: str) -> None:
    (tmp_path / ".dockerconfigjson").write_text(json.dumps({"auths": auths}))
    assert read_account(str(tmp_path), "registry.example", "team/caches") == expected


def test_the_fingerprint_knows_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm-0.20.1.dist-info").mkdir()
    record = tmp_path / "vllm-0.20.1.dist-info" / "RECORD"
    source = tmp_path / "flashinfer" / "data" / "kernel.cuh"
    source.parent.mkdir(parents=True)
    (tmp_path / "flashinfer" / "__init__.py").write_text("raise SystemExit")  # it is not imported
    record.write_text("vllm/__init__.py,sha256=abc,10\n")
    source.write_text("")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    seen = [build.build_fingerprint("image:1")]
    assert build.build_fingerprint("mirror/image:2") == seen[0]
    record.write_text("vllm/__init__.py,sha256=abd,10\n")
    seen.append(build.build_fingerprint("image:1"))
    os.utime(source, (2_000_000_000, 2_000_000_000))
    seen.append(build.build_fingerprint("image:1"))
    record.unlink()  # packages that cannot be found: only the same image will do
    seen += [build.build_fingerprint("image:1"), build.build_fingerprint("image:2")]
    assert len(set(seen)) == 5
    assert LABEL == "vllm-operator.dev/"


def test_the_packages_of_the_python_that_runs_vllm_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    (packages / "vllm-0.20.1.dist-info").mkdir(parents=True)
    (packages / "vllm-0.20.1.dist-info" / "RECORD").write_text("abc")
    (tmp_path / "venv" / "bin").mkdir()
    script = tmp_path / "venv" / "bin" / "vllm"
    script.write_text(f"#!{tmp_path}/venv/bin/python3\nimport sys\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setenv("PATH", str(script.parent))
    assert build.package_folders() == [str(packages)]
    first = build.build_fingerprint("image:1")
    assert build.build_fingerprint("image:2") == first
    script.write_bytes(b"\x7fELF\xff\xfe")
    assert build.package_folders() == []


def test_the_facts_about_an_image_are_versions_the_driver_and_digests_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm-0.20.1+cu129", "torch-2.9.0", "flashinfer_python-0.6.8.post1", "requests-2.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    driver = tmp_path / "version"
    driver.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\nGCC version:  gcc version 12.2.0\n"
    )
    cuda = tmp_path / "version.json"
    cuda.write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": "12.9.20250531"}, "nvcc": {"version": "1"}}))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(build, "DRIVER", str(driver))
    monkeypatch.setattr(build, "CUDA_VERSIONS", (str(cuda),))
    facts = build.describe_build({"parts": {"version": "0.20.1", "product": "H200"}, "named": {"--max-num-seqs": "01234567"}})
    facts.pop("Python")
    assert facts == {
        "vllm": "0.20.1+cu129",
        "torch": "2.9.0",
        "flashinfer-python": "0.6.8.post1",
        "CUDA": "12.9.20250531",
        "driver": "580.82.07",
        "product": "H200",
        "--max-num-seqs": "01234567",
    }


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("", ""),
        ("{}", ""),
        ("no JSON", ""),
        ("[" * 5000, ""),
        ('["torch"]', ""),
        ('{"torch": "2.9.0", "model": "a"}', ""),
        ('{"torch": "2.8.0", "model": "a"}', "torch 2.8.0 instead of 2.9.0"),
        ('{"torch": "2.9.0", "model": "b", "--x": "1"}', "other values of model, --x"),
        ('{"torch": "2.9.0", "model": "a", "driver": "580"}', "driver 580 instead of none"),
        ('{"torch": "\\u001b[31m2.8.0", "model": "a"}', "torch none instead of 2.9.0"),
        ('{"torch": 1, "model": "a", "\\n": "x"}', "torch none instead of 2.9.0"),
    ],
)
def test_what_differs_is_told_from_labels_of_any_content(label: str, expected: str) -> None:
    assert build.differences({"torch": "2.9.0", "model": "a"}, label) == expected
