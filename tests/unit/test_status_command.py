"""`kubectl vllm status`: what is read, what is drawn again, what a terminal and a pipe get."""

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import llama
from vllm_operator.cli import terminal
from vllm_operator.cli.live import last_renewal, screens
from vllm_operator.cli.status import newest, notice_of_absence, read_object, service_of, stage_bar, status_page, top_page
from vllm_operator.cli.terminal import Line, Span, Style, age, bar, grid, line, plain
from vllm_operator.kube.client import EVENT, VLLM_DEPLOYMENT, Forbidden, NotFound, Unavailable

NOW = datetime(2026, 11, 23, 5, 0, tzinfo=UTC)
OURS = {"app.kubernetes.io/name": "vllm-operator"}


def reason(text: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": "False", "reason": text, "message": "m"}]}


def watched(cluster: FakeCluster) -> AsyncGenerator[list[Line]]:
    read = partial(read_object, cluster, "llama", "default")
    return screens(read, lambda found: status_page(*found, NOW, width=80), redraw_seconds=0)


async def test_the_screen_follows_the_object() -> None:
    cluster = FakeCluster()
    cluster.put({**llama(), "status": reason("Starting")})
    seen = watched(cluster)
    assert "Starting" in plain(await anext(seen))
    cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"status": reason("Serving")})
    while "Serving" not in plain(await anext(seen)):
        pass
    await seen.aclose()


async def test_an_outage_keeps_the_last_screen() -> None:
    cluster = FakeCluster()
    cluster.put({**llama(), "status": reason("Starting")})
    seen = watched(cluster)
    await anext(seen)
    cluster.fail("*", None, Unavailable("no answer"), times=2)
    for _ in range(4):
        assert "Starting" in plain(await anext(seen))
    await seen.aclose()


async def test_the_table_of_all_is_drawn_again_and_outlasts_an_outage() -> None:
    cluster = FakeCluster()
    cluster.put({**llama(), "status": reason("Starting")})
    read = partial(cluster.find, VLLM_DEPLOYMENT, "default")
    seen = screens(read, lambda found: top_page(found, NOW, width=80), redraw_seconds=0)
    assert "Starting" in plain(await anext(seen))
    cluster.fail("list", VLLM_DEPLOYMENT, Unavailable("no answer"))
    assert "Starting" in plain(await anext(seen))
    cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"status": reason("Serving")})
    assert "Serving" in plain(await anext(seen))
    await seen.aclose()


async def test_an_object_that_does_not_exist_is_an_error_and_events_are_optional() -> None:
    cluster = FakeCluster()
    with pytest.raises(NotFound):
        await read_object(cluster, "llama", "default")
    cluster.put(llama())
    cluster.fail("list", EVENT, Forbidden("no"))
    assert (await read_object(cluster, "llama", "default"))[1] == []


@pytest.mark.parametrize(
    ("renewed", "words"),
    [
        (None, ""),
        (NOW - timedelta(seconds=4), ""),
        (NOW + timedelta(seconds=9), ""),
        (
            NOW - timedelta(minutes=4),
            "not renewed its Lease since 2026-11-23 04:56:00 UTC (4 min ago): this is the state of that time.",
        ),
    ],
)
def test_an_operator_that_is_away_is_told(renewed: datetime | None, words: str) -> None:
    shown = plain(notice_of_absence(renewed, NOW, width=200))
    assert bool(shown.strip()) is bool(words)
    assert words in shown


async def test_the_last_renewal_is_the_one_of_the_operators_leases() -> None:
    cluster = FakeCluster()
    assert await last_renewal(cluster) is None
    for name, labels, time in (("a", OURS, "04:01"), ("b", OURS, "04:02"), ("node-1", {}, "04:59")):
        metadata = {"name": name, "namespace": "system", "labels": labels}
        spec = {"renewTime": f"2026-11-23T{time}:00.000000Z"}
        cluster.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})
    assert await last_renewal(cluster) == datetime(2026, 11, 23, 4, 2, tzinfo=UTC)
    cluster.fail("*", None, Forbidden("no"), times=2)
    assert await last_renewal(cluster) is None, "without the permission, nobody knows"


@pytest.mark.parametrize(
    ("ready", "available", "replicas", "is_new", "words"),
    [
        ("True 04:00", "True 04:00", 1, False, ""),
        ("False 04:50", "True 04:00", 3, False, "SERVING 3 of 4"),
        ("False 04:50", "True 04:00", 4, False, "SERVING, NOT AS REQUESTED"),
        ("False 04:50", "False 04:58", 0, False, "DOWN since 2026-11-23 04:58:00 UTC (2 min ago)"),
        ("False 04:59", "False 04:00", 0, False, "DOWN since 2026-11-23 04:59:00 UTC (1 min ago)"),
        ("False 04:59", "False 04:59", 0, True, "NOT SERVING YET"),
        ("False 04:59", "Unknown 04:59", 0, True, ""),
    ],
    ids=["all serve", "some serve", "a change is held", "degraded, then down", "down after scaled to zero", "first start", "unknown"],
)
def test_the_first_line_says_whether_anything_serves(ready: str, available: str, replicas: int, is_new: bool, words: str) -> None:
    judged = (("Ready", *ready.split()), ("Available", *available.split()))
    conditions = [{"type": kind, "status": status, "lastTransitionTime": f"2026-11-23T{time}:00Z"} for kind, status, time in judged]
    status = {"conditions": conditions, "readyReplicas": replicas, "url": "" if is_new else "http://llama"}
    assert service_of({"spec": {"replicas": 4}, "status": status}, NOW) == words


async def test_events_of_an_earlier_object_are_left_out() -> None:
    cluster = FakeCluster()
    uid = cluster.put(llama())["metadata"]["uid"]
    for name, owner in (("ours", uid), ("old", "another")):
        involved = {"kind": "VLLMDeployment", "name": "llama", "uid": owner}
        metadata = {"name": name, "namespace": "default"}
        cluster.put({"apiVersion": "v1", "kind": "Event", "metadata": metadata, "reason": name, "involvedObject": involved})
    _, events = await read_object(cluster, "llama", "default")
    assert [event["reason"] for event in events] == ["ours"]


def test_an_estimate_goes_down_with_the_time() -> None:
    startup = {"completed": 1, "total": 4, "etaSeconds": 60, "updateTime": "2026-11-23T04:59:40Z"}
    assert plain([tuple(stage_bar(startup, NOW))]) == "██████░░░░░░░░░░░░░░░░░░ 1/4  about 40 s left in this step"
    assert "left" not in plain([tuple(stage_bar({**startup, "etaSeconds": 10}, NOW))])
    by_time = {"etaSeconds": 30, "updateTime": "2026-11-23T05:00:00Z", "stageSince": "2026-11-23T04:59:30Z"}
    assert plain([tuple(stage_bar(by_time, NOW))]).startswith("████████████░")
    assert stage_bar({}, NOW) == []


def test_events_are_in_the_order_of_their_last_occurrence() -> None:
    times = ("2026-11-23T04:00:00Z", "2026-11-23T04:30:00Z", "nonsense")
    events = [{"reason": str(number), "lastTimestamp": each} for number, each in enumerate(times)]
    assert [event["reason"] for _, event in newest(events)] == ["1", "0", "2"]


def test_it_is_told_when_not_all_events_are_shown() -> None:
    events = [{"reason": str(number), "lastTimestamp": "2026-11-23T04:00:00Z"} for number in range(7)]
    pages = [plain(status_page({}, given, NOW, width=100)).split("\n") for given in (events, events[:5])]
    assert "Events (the newest 5 of 7; `kubectl vllm status -o yaml` shows all)" in pages[0]
    assert "Events" in pages[1]


def test_a_table_has_aligned_columns_and_no_empty_cell() -> None:
    rows = [(Span("a"), Span("long", Style.RED)), (Span(""), Span("x"))]
    assert plain(grid(("NAME", "B"), rows)) == "NAME  B\na     long\n-     x"
    assert plain([bar(7, 0)]) == "░" * 24
    assert [age(datetime.fromtimestamp(NOW.timestamp() - s, UTC), NOW) for s in (5, 61, 7300, 200_000)] == ["5 s", "1 min", "2 h", "2 d"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "no_colour", "escapes"),
    [(io.StringIO(), "", False), (Terminal(), "", True), (Terminal(), "1", False)],
    ids=["pipe", "terminal", "NO_COLOR"],
)
def test_only_a_terminal_gets_colours(stream: io.StringIO, no_colour: str, escapes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NO_COLOR", no_colour), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.show([line(Span("bad", Style.RED)), line("plain [red]not markup[/red]")])
    said = stream.getvalue()
    assert ("\x1b[31m" in said) is escapes
    assert "[red]not markup[/red]" in said


def test_a_pipe_gets_only_screens_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    async def three() -> AsyncGenerator[list[Line]]:
        for text in ("a", "a", "b"):
            yield [line(text)]

    asyncio.run(terminal.show_each(three()))
    assert capsys.readouterr().out == "a\n\nb\n\n"


def test_screens_are_closed_before_a_broken_pipe_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what they hold open, such as a watch, complains when the event loop ends."""
    closed = []

    async def endless() -> AsyncGenerator[list[Line]]:
        try:
            while True:
                yield [line("a")]
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def watch() -> None:
        with pytest.raises(BrokenPipeError):
            await terminal.show_each(endless())
        assert closed

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Broken())
    asyncio.run(watch())


def test_a_terminal_gets_each_screen_in_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def two() -> AsyncGenerator[list[Line]]:
        for text in ("first", "second"):
            yield [line(text), line("below")]

    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", stream)
    asyncio.run(terminal.show_each(two()))
    first, _, rest = stream.getvalue().partition("second")
    assert "first" in first
    assert "\x1b[1A" in first  # one line up, over the screen before
    assert "below" in rest


def test_the_operator_does_not_import_what_draws_screens() -> None:
    code = (
        "import sys, vllm_operator.controller.app; print([name for name in sys.modules if name.split('.')[0] == 'rich' or '.cli.' in name])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
