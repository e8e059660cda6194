"""`kubectl vllm caches`: where caches are, what they save, and what was fetched and published."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.operators import llama
from vllm_operator.__main__ import kubectl_plugin
from vllm_operator.cli import status

CACHE = {
    "key": "v0.20.1-sm90-h200-tp1-11e89eaa",
    "claimName": "llama-cache",
    "state": "Warm",
    "coldStartSeconds": 459,
    "warmStartSeconds": 35,
    "artifact": {"tag": "v0.20.1-sm90-h200-tp1-x86-64-abc-def", "publishResult": "Published"},
}
FETCHED = {"key": "k", "state": "Cold", "artifact": {"fetch": "Fetched", "tag": "t\x1b[31m"}}


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(objects: list[Any], *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(status, "with_client", lambda *_: (objects, []))
        ended = kubectl_plugin(["caches", "-A", *arguments])
        captured = capsys.readouterr()
        return ended, captured.out + captured.err

    return run


@pytest.fixture
def objects() -> list[dict[str, Any]]:
    published = {**llama("published"), "status": {"cache": CACHE}}
    fetched = {**llama("fetched", cache={"storage": "EmptyDir"}), "status": {"cache": FETCHED}}
    return [published, fetched, llama("new"), {**llama("odd"), "status": {"cache": {"key": 1, "artifact": []}}}]


def test_the_table_says_where_caches_are_and_what_they_save(run: Run, objects: list[Any]) -> None:
    ended, page = run(objects)
    header, first, second = page.splitlines()
    assert ended == 0
    assert header.split()[:4] == ["NAMESPACE", "NAME", "KEY", "WHERE"]
    assert first.split()[:-1] == ["default", "fetched", "k", "EmptyDir", "Cold", "-", "-", "-", "Fetched", "-"]
    assert "\x1b" not in page
    expected = [
        "default",
        "published",
        CACHE["key"],
        "llama-cache",
        "Warm",
        "459",
        "s",
        "35",
        "s",
        "424",
        "s",
        "-",
        "Published",
    ]
    assert second.split()[:-1] == expected


def test_the_list_for_programs(run: Run, objects: list[Any]) -> None:
    rows = json.loads(run(objects, "-o", "json")[1])["caches"]
    assert [(row["name"], row["savedSeconds"], row["fetch"]) for row in rows] == [("fetched", None, "Fetched"), ("published", 424, "")]


@pytest.mark.parametrize(
    ("cache", "where"),
    [
        ({}, "llama-cache"),
        ({"claimName": "own"}, "own"),
        ({"storage": "ClaimPerReplica"}, "ClaimPerReplica"),
        ({"storage": "EmptyDir"}, "EmptyDir"),
        ({"storage": "HostPath"}, "HostPath"),
        ({"hostPath": "/var/caches"}, "HostPath"),
    ],
)
def test_where_caches_are(run: Run, cache: dict[str, Any], where: str) -> None:
    resource = {**llama("llama", cache=cache), "status": {"cache": {"key": "k"}}}
    [row] = json.loads(run([resource], "-o", "json")[1])["caches"]
    assert row["where"] == where


def test_without_caches_it_says_so(run: Run) -> None:
    assert run([llama()]) == (0, "No caches yet.\n")
