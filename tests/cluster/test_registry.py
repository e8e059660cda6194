"""The programs that publish and fetch caches, as they run in Pods, against a real registry with TLS and an account."""

from pathlib import Path

from support.artifacts import FILES
from support.registry_programs import LEFT_OUT, REPOSITORY, Programs, files_of


def test_caches_go_through_a_registry_with_their_times(programs: Programs, filled: Path, tmp_path: Path) -> None:
    status, published = programs.run("publish", filled, settings="one")
    assert (status, published["result"]) == (0, "Published"), published
    assert published["tag"] in programs.registry.tags(REPOSITORY)
    status, fetched = programs.run("fetch", tmp_path / "cache", settings="one")
    assert (status, fetched["result"], fetched["digest"]) == (0, "Fetched", published["digest"]), fetched
    assert files_of(tmp_path / "cache") == {name: content for name, content in FILES.items() if not name.endswith(LEFT_OUT)}
    for name in files_of(tmp_path / "cache"):
        assert (tmp_path / "cache" / name).stat().st_mtime_ns == (filled / name).stat().st_mtime_ns // 10**9 * 10**9
    assert programs.run("publish", filled, settings="one")[1]["result"] == "AlreadyPublished"
    assert programs.run("fetch", tmp_path / "other", settings="two")[1]["result"] == "PartlyFetched"
    reference = f"{programs.registry.host}/{REPOSITORY}@{published['digest']}"
    assert programs.run("fetch", tmp_path / "pinned", settings="one", reference=reference)[1]["result"] == "Fetched"


def test_what_the_registry_refuses_is_named(programs: Programs, filled: Path, tmp_path: Path) -> None:
    account = programs.registry.account()
    assert (
        programs.run("fetch", tmp_path / "cache", settings="x", repository=f"{programs.registry.host}/team/none")[1]["result"] == "NotFound"
    )
    programs.log_in(programs.registry.account("wrong"))
    assert programs.run("fetch", tmp_path / "cache", settings="x")[1]["result"] == "Denied"
    assert programs.run("publish", filled, settings="x")[1]["result"] == "Denied"
    programs.log_in({})
    assert programs.run("fetch", tmp_path / "cache", settings="x")[1]["result"] == "SecretMissing"
    programs.log_in({"ca.crt": account["ca.crt"]})
    assert programs.run("fetch", tmp_path / "cache", settings="x")[1]["result"] == "SecretMissing"
    programs.log_in({".dockerconfigjson": account[".dockerconfigjson"]})
    status, untrusted = programs.run("fetch", tmp_path / "cache", settings="x")
    assert (status, untrusted["result"]) == (0, "Unreachable")
    assert "certificate" in untrusted["message"]
    assert files_of(tmp_path / "cache") == {}
