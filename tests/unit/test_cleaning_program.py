"""The program of the Job that makes room, on a volume: what it removes, in which order, and what it leaves alone."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from support.tools import command
from support.volumes import GENERATION, OLD, OLDER, RECORDED, USED, age, clean, make


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    root = tmp_path / "claim"
    root.mkdir()
    for name, days in ((OLD, 30), (OLDER, 10), (USED, 20), (GENERATION, 1)):
        make(root, name, days=days)
    for name in ("models", "models-u1000", "lost+found", "somebody-elses"):
        make(root, name, days=400, marked=False)
    return root


def test_older_generations_go_first_then_the_longest_unused(volume: Path) -> None:
    assert clean(volume, keep=[USED])["removed"] == [GENERATION, OLD, OLDER]
    assert sorted(path.name for path in volume.iterdir()) == ["lost+found", "models", "models-u1000", "somebody-elses", USED]


def test_what_is_doomed_goes_although_there_is_room(volume: Path) -> None:
    assert clean(volume, keep=[USED], doomed=[OLDER, USED], share=0)["removed"] == [OLDER]
    assert (volume / USED).exists()


def test_what_was_used_a_moment_ago_stays(volume: Path) -> None:
    (volume / OLD / "triton" / "kernel.cubin").touch()
    assert OLD not in clean(volume, keep=[USED])["removed"]


def test_what_a_pod_starts_to_use_at_that_moment_is_put_back(volume: Path) -> None:
    keep = json.dumps([OLDER, USED, GENERATION])
    variables = {"CLEAN_ROOT": str(volume), "CLEAN_KEEP": keep, "CLEAN_SHARE": "100", "CLEAN_GRACE": "1"}
    variables["CLEAN_RECORDED"] = json.dumps(RECORDED)
    with subprocess.Popen(command("clean-caches"), env=variables, stdout=subprocess.PIPE, text=True) as running:
        # the Pod has the directory mounted, whatever it is called now
        leaving = volume / f".leaving-{OLD}" / "triton" / "kernel.cubin"
        while not leaving.exists():
            assert running.poll() is None
        leaving.touch()
        told = json.loads(running.communicate()[0])
    assert (told["removed"], told["kept"]) == ([], {OLD: "it was used while it was taken out of use"})
    assert (volume / OLD / "triton" / "kernel.cubin").exists()


def test_what_was_being_deleted_when_a_run_was_interrupted_is_deleted(volume: Path) -> None:
    (volume / OLD).rename(volume / f".deleting-{OLD}")
    told = clean(volume, keep=[USED, OLDER, GENERATION])
    assert not (volume / f".deleting-{OLD}").exists()
    assert told["removed"] == [OLD]


def test_what_was_only_taken_out_of_use_when_a_run_was_interrupted_is_put_back(volume: Path) -> None:
    (volume / OLD).rename(volume / f".leaving-{OLD}")
    assert clean(volume, keep=[OLD, USED, OLDER, GENERATION])["removed"] == []
    assert (volume / OLD / "triton" / "kernel.cubin").exists()


def test_a_run_that_is_asked_to_stop_puts_back_what_it_has_not_begun_to_delete(volume: Path) -> None:
    variables = {"CLEAN_ROOT": str(volume), "CLEAN_RECORDED": json.dumps([OLD]), "CLEAN_SHARE": "100", "CLEAN_GRACE": "60"}
    with subprocess.Popen(command("clean-caches"), env=variables) as running:
        while not (volume / f".leaving-{OLD}").exists():
            assert running.poll() is None
        running.terminate()
        assert running.wait(timeout=30) == 143
    assert (volume / OLD / "triton" / "kernel.cubin").exists()


@pytest.mark.parametrize("prefix", [".leaving-", ".deleting-"])
def test_what_merely_looks_like_the_rest_of_an_interrupted_run_stays(volume: Path, prefix: str) -> None:
    for name in ("theirs", OLD + "x"):
        make(volume, f"{prefix}{name}", days=400, marked=False)
    make(volume, f"{prefix}{OLDER}", days=400, marked=False)  # recorded, but without a marker
    before = inventory(volume)
    clean(volume, keep=RECORDED)
    assert inventory(volume) == before


def inventory(root: Path) -> dict[str, tuple[int, bytes]]:
    """All that is on a volume."""
    paths = sorted(root.rglob("*"))
    return {str(path.relative_to(root)): (path.lstat().st_ino, path.read_bytes() if path.is_file() else b"") for path in paths}


LOOK_ALIKES = {
    "an export of the user": ("v2-export-20240115", False, False),
    "recorded by its name only": (OLD, True, False),
    "marked and not recorded": ("v0.1.0-sm90-h100-tp1-00000009", False, True),
}


@pytest.mark.parametrize(("name", "recorded", "marked"), LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_only_what_is_recorded_and_marked_is_removed(tmp_path: Path, name: str, recorded: bool, marked: bool) -> None:
    make(tmp_path / "claim", name, days=400, marked=marked)
    before = inventory(tmp_path / "claim")
    told = clean(tmp_path / "claim", keep=[], doomed=[name], recorded=[name] if recorded else [])
    assert inventory(tmp_path / "claim") == before
    assert (told["removed"], told["others"]) == ([], 1)


def test_a_copy_of_a_directory_under_another_name_is_not_marked(volume: Path) -> None:
    shutil.copytree(volume / OLD, volume / "v0.16.0-backup-00000077")
    age(volume / OLD)
    told = clean(volume, keep=[], recorded=[*RECORDED, "v0.16.0-backup-00000077"])
    assert OLD in told["removed"]
    assert (volume / "v0.16.0-backup-00000077" / "triton" / "kernel.cubin").exists()
    assert told["others"] == 4


def test_a_marker_that_is_a_link_or_a_directory_is_none(volume: Path) -> None:
    for name in (OLD, OLDER):
        (volume / name / f".vllm-operator-{name}").unlink()
    (volume / OLD / f".vllm-operator-{OLD}").symlink_to(volume / USED / f".vllm-operator-{USED}")
    (volume / OLDER / f".vllm-operator-{OLDER}").mkdir()
    age(volume)
    assert clean(volume, keep=[USED])["removed"] == [GENERATION]


def test_what_is_left_alone_is_counted(volume: Path) -> None:
    (volume / "somebody-elses" / "big").write_bytes(b"x" * 3_000_000)
    (volume / OLDER / f".vllm-operator-{OLDER}").unlink()
    told = clean(volume, keep=[USED, "models", "models-u1000"])
    assert told["others"] == 2
    assert 3_000_000 <= told["otherBytes"] < 3_200_000
    assert len(json.dumps(told)) < 4096


def test_a_link_in_a_directory_goes_and_what_it_leads_to_stays(volume: Path) -> None:
    (volume / OLD / "out").symlink_to(volume / "models")
    (volume / OLD / "file").symlink_to(volume / "models" / "triton" / "kernel.cubin")
    (volume / "copy").mkdir()
    os.link(volume / OLD / "triton" / "kernel.cubin", volume / "copy" / "kernel.cubin")
    age(volume / OLD)
    assert OLD in clean(volume, keep=[])["removed"]
    assert (volume / "models" / "triton" / "kernel.cubin").read_bytes() == b"x" * 10
    assert (volume / "copy" / "kernel.cubin").read_bytes() == b"x" * 10


def test_a_link_with_the_name_of_a_recorded_directory_is_not_followed(volume: Path) -> None:
    (volume / "models" / ".vllm-operator-v1-link-0000000a").touch()
    (volume / "v1-link-0000000a").symlink_to(volume / "models")
    age(volume / "models")
    before = inventory(volume / "models")
    clean(volume, keep=RECORDED, recorded=[*RECORDED, "v1-link-0000000a"])
    assert inventory(volume / "models") == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("depth", ["", "triton", "triton/deep/er"])
def test_what_is_mounted_below_stays_and_so_does_the_directory(volume: Path, depth: str) -> None:
    """In a mount namespace of its own: one of the same file system (a bind mount) and one of another (tmpfs)."""
    make(volume, "theirs", days=400, marked=False)
    (volume / OLD / depth / "bind").mkdir(parents=True)
    (volume / OLDER / depth / "other").mkdir(parents=True)
    age(volume / OLD)
    age(volume / OLDER)
    mounts = f"mount --bind {volume}/theirs {volume}/{OLD}/{depth}/bind && mount -t tmpfs none {volume}/{OLDER}/{depth}/other"
    variables = {"CLEAN_ROOT": str(volume), "CLEAN_RECORDED": json.dumps(RECORDED), "CLEAN_SHARE": "100", "CLEAN_GRACE": "0"}
    mounted = ["unshare", "-m", "sh", "-c", f"{mounts} || exit 77; exec {shlex.join(command('clean-caches'))}"]
    done = subprocess.run(mounted, env={**variables, "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr}")
    assert sorted(json.loads(done.stdout)["removed"]) == [GENERATION, USED]
    assert (volume / "theirs" / "triton" / "kernel.cubin").exists()
    assert (volume / OLD / "triton" / "kernel.cubin").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may delete anything")
def test_what_may_not_be_deleted_is_reported_and_tried_again(volume: Path) -> None:
    (volume / OLD / "triton").chmod(0o555)
    first = clean(volume, keep=[USED, OLDER, GENERATION])
    assert (first["removed"], list(first["kept"])) == ([], [OLD])
    assert "Permission denied" in first["kept"][OLD]
    (volume / f".deleting-{OLD}" / "triton").chmod(0o755)
    assert clean(volume, keep=[USED, OLDER, GENERATION])["removed"] == [OLD]


def test_no_more_is_removed_than_the_report_can_name(tmp_path: Path) -> None:
    names = [f"v0.16.0-{'x' * 44}-{number:08x}" for number in range(40)]
    for name in names:
        make(tmp_path / "claim", name, days=30)
    told = clean(tmp_path / "claim", keep=[], recorded=names)
    left = {path.name for path in (tmp_path / "claim").iterdir()}
    assert (len(told["removed"]), set(told["removed"]) | left) == (32, set(names))
    assert len(json.dumps(told)) < 4096


def test_why_a_doomed_directory_stays_is_reported(volume: Path) -> None:
    (volume / OLDER / f".vllm-operator-{OLDER}").unlink()
    shutil.rmtree(volume / GENERATION)
    (volume / f".leaving-{OLD}").mkdir()
    told = clean(volume, keep=[USED], doomed=[OLD, OLDER, GENERATION, USED], share=0)
    assert told["removed"] == []
    assert told["kept"] == {
        OLD: f".leaving-{OLD} or .deleting-{OLD} is in the way",
        OLDER: f"it has no file .vllm-operator-{OLDER}, which each Pod of the operator writes",
        GENERATION: "gone",
        USED: "a Pod or a VLLMDeployment uses it",
    }


def test_no_more_reasons_are_reported_than_fit(tmp_path: Path) -> None:
    names = [f"v0.16.0-{'x' * 44}-{number:08x}" for number in range(40)]
    for name in names:
        make(tmp_path / "claim", name, days=30, marked=False)
    told = clean(tmp_path / "claim", keep=[], doomed=names, recorded=names)
    assert told["kept"]
    assert len(json.dumps(told)) < 4096
