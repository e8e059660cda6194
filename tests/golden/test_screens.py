"""The screens of `kubectl vllm`, drawn from what the API server had in a run of the demo, to be read by people."""

import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from vllm_operator.cli.screen import Line, plain
from vllm_operator.cli.status_page import status_page
from vllm_operator.cli.terminal import as_rich_text

Golden = Callable[[Path, str], None]

FOLDER = Path(__file__).parent / "screens"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
MOMENTS = {"starting": datetime(2026, 11, 23, 5, 0, 55, tzinfo=UTC), "settled": datetime(2026, 11, 23, 5, 1, 10, tzinfo=UTC)}
"""While deepseek compiled kernels, and when all four situations of the demo had come to their end."""
STATUS_PAGES = [
    ("starting", "deepseek"),
    ("settled", "deepseek"),
    ("settled", "deepseek-again"),
    ("settled", "tinyllama"),
    ("settled", "llama"),
]


def recorded(moment: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{moment}.json").read_text("utf-8"))
    return content


def status_of(moment: str, name: str, *, width: int = 100) -> list[Line]:
    content = recorded(moment)
    resource = next(each for each in content["objects"] if each["metadata"]["name"] == name)
    events = [event for event in content["events"] if event["involvedObject"]["name"] == name]
    return status_page(resource, events, MOMENTS[moment], width=width)


@pytest.mark.parametrize(("moment", "name"), STATUS_PAGES)
def test_the_status_of_the_demos_situations(moment: str, name: str, golden: Golden) -> None:
    golden(FOLDER / f"status-{moment}-{name}.txt", plain(status_of(moment, name)) + "\n")


@pytest.mark.parametrize(("moment", "name"), STATUS_PAGES)
def test_a_status_fits_on_a_screen(moment: str, name: str) -> None:
    lines = status_of(moment, name)
    assert len(lines) <= 28
    assert all(len(plain([line])) <= 100 or "kubectl patch" in plain([line]) for line in lines)


def picture(lines: list[Line], title: str, *, width: int) -> str:
    """What a terminal shows, as SVG; without the fonts that rich would have it load from elsewhere."""
    canvas = Console(record=True, width=width, file=io.StringIO(), highlight=False, force_terminal=True)
    canvas.print(as_rich_text(lines))
    return re.sub(r"@font-face \{.*?\}\s*", "", canvas.export_svg(title=title), flags=re.DOTALL)


@pytest.mark.parametrize(
    ("moment", "name", "file"), [("starting", "deepseek", "status-starting"), ("settled", "tinyllama", "status-crashed")]
)
def test_the_pictures_in_the_docs_are_these_screens(moment: str, name: str, file: str, golden: Golden) -> None:
    golden(IMAGES / f"{file}.svg", picture(status_of(moment, name), f"kubectl vllm status {name}", width=100))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["startup", "conditions", "type", "Ready", "cache", "count"]), inner),
    max_leaves=20,
)


@given(JSON, JSON, JSON)
def test_any_object_has_a_page(status: Any, spec: Any, event: Any) -> None:
    assert status_page(
        {"metadata": {"name": "a"}, "spec": spec, "status": status}, [{"message": event, "count": spec}], MOMENTS["settled"], width=80
    )
