"""The screens of `kubectl vllm`, drawn from what the API server had in a run of the demo, to be read by people."""

import io
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from demo.cluster import NODES, gpu_nodes
from demo.picture import Start, draw_picture, start_of_log
from support.gpus import bare_node, device, real_node, resource_slice
from support.pasted import read_pasted
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.cli.gpus import gpus_page
from vllm_operator.cli.status import status_page, top_page
from vllm_operator.cli.terminal import Line, as_rich_text, plain
from vllm_operator.inventory.nodes import read_inventory

Golden = Callable[[Path, str], None]

FOLDER = Path(__file__).parent / "screens"
ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
COLD = ROOT / "tests" / "corpus" / "h200" / "dsv3-fp8-cold-full.log"
WARM = ROOT / "hack" / "demo" / "recordings" / "dsv3-fp8-warm.log"
MOMENTS = ("starting", "settled")
"""While deepseek compiled kernels, and when all five situations of the demo had come to their end."""
NOW = datetime(2026, 11, 23, 5, 1, 10, tzinfo=UTC)
STATUS_PAGES = [
    ("starting", "deepseek"),
    ("settled", "deepseek"),
    ("settled", "deepseek-again"),
    ("settled", "tinyllama"),
    ("settled", "llama"),
    ("settled", "mistral"),
]


def recorded(moment: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{moment}.json").read_text("utf-8"))
    return content


def status_of(moment: str, name: str, *, width: int = 100) -> list[Line]:
    content = recorded(moment)
    resource = next(each for each in content["objects"] if each["metadata"]["name"] == name)
    events = [event for event in content["events"] if event["involvedObject"]["name"] == name]
    return status_page(resource, events, datetime.fromisoformat(content["moment"]), width=width)


@pytest.mark.parametrize(("moment", "name"), STATUS_PAGES)
def test_the_status_of_the_demos_situations(moment: str, name: str, golden: Golden) -> None:
    golden(FOLDER / f"status-{moment}-{name}.txt", plain(status_of(moment, name)) + "\n")


@pytest.mark.parametrize(("moment", "name"), STATUS_PAGES)
def test_a_status_fits_on_a_screen(moment: str, name: str) -> None:
    lines = status_of(moment, name)
    assert len(lines) <= 29
    assert all(len(plain([line])) <= 100 or "kubectl " in plain([line]) for line in lines)


def picture(lines: list[Line], title: str, *, width: int) -> str:
    """What a terminal shows, as SVG; without the fonts that rich would have it load from elsewhere."""
    canvas = Console(record=True, width=width, file=io.StringIO(), highlight=False, force_terminal=True)
    canvas.print(as_rich_text([*lines, ()]))  # rich cuts the lower edge of the last line
    return re.sub(r"@font-face \{.*?\}\s*", "", canvas.export_svg(title=title), flags=re.DOTALL)


@pytest.mark.parametrize(
    ("moment", "name", "file"), [("starting", "deepseek", "status-starting"), ("settled", "tinyllama", "status-crashed")]
)
def test_the_pictures_in_the_docs_are_these_screens(moment: str, name: str, file: str, golden: Golden) -> None:
    golden(IMAGES / f"{file}.svg", picture(status_of(moment, name), f"kubectl vllm status {name}", width=100))


def test_the_picture_in_the_readme_has_the_five_situations_of_the_demo(golden: Golden) -> None:
    cold, warm = (start_of_file(path) for path in (COLD, WARM))
    drawn = draw_picture(recorded("settled")["objects"], cold, warm)
    golden(IMAGES / "demo.svg", drawn)
    said = [text.text for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    for words in ("kernel warm-up", "7 min 28 s  ✔ serves", "25 s  ✔ serves", "✘ MigUuidNotInteger", "✘ NoMatchingGPU", "✘ RolledBack"):
        assert words in said
    advice = [words for words in said if words and words.startswith("What to do: ")]
    assert len(advice) == 2
    assert max(map(len, advice)) <= 88, "it is wider than the picture"
    # the last frame is what is drawn; only the way to it is animated
    assert "infinite" not in drawn
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")


def start_of_file(path: Path) -> Start:
    return start_of_log(read_pasted(path.read_bytes()).final_state)


def nodes_of_the_demo() -> list[dict[str, Any]]:
    nodes = gpu_nodes()
    for kind, node in zip(NODES, nodes, strict=True):
        node["metadata"]["name"] = f"gpu-{kind}-0"
    return nodes


def gpus_of(pods: list[dict[str, Any]] | None, *nodes: dict[str, Any], slices: Sequence[dict[str, Any]] = ()) -> list[Line]:
    return gpus_page(read_inventory(nodes, slices, load_catalog().gpus), pods, load_catalog().gpus, width=100)


@pytest.mark.parametrize("moment", MOMENTS)
def test_all_deployments_of_the_demo(moment: str, golden: Golden) -> None:
    content = recorded(moment)
    lines = top_page(content["objects"], datetime.fromisoformat(content["moment"]), width=100)
    golden(FOLDER / f"top-{moment}.txt", plain(lines) + "\n")
    if moment == "starting":
        golden(IMAGES / "top.svg", picture(lines, "kubectl vllm top", width=max(len(plain([line])) for line in lines)))


def test_the_gpus_of_the_demo(golden: Golden) -> None:
    lines = gpus_of(recorded("settled")["pods"], *nodes_of_the_demo())
    golden(FOLDER / "gpus.txt", plain(lines) + "\n")
    golden(IMAGES / "gpus.svg", picture(lines, "kubectl vllm gpus", width=140))


def test_gpus_of_others_of_broken_nodes_and_of_claims(golden: Golden) -> None:
    asks = {"resources": {"limits": {"nvidia.com/gpu": "6"}}}
    theirs = {"metadata": {"namespace": "lab", "name": "train-0"}, "spec": {"nodeName": "h200-0", "containers": [asks]}}
    waiting = {"metadata": {"namespace": "lab", "name": "train-1"}, "spec": {"containers": [asks]}}
    ended = {**theirs, "status": {"phase": "Succeeded"}}
    nodes = [real_node("h200"), real_node("l40s", cordoned=True), real_node("gb10"), real_node("h100-time-sliced"), bare_node("dra")]
    page = gpus_of([theirs, waiting, ended], *nodes, slices=[resource_slice("dra", device(), device())])
    golden(FOLDER / "gpus-of-others.txt", plain(page) + "\n")


def test_without_permission_for_pods_it_is_unknown_what_is_free() -> None:
    text = plain(gpus_of(None, real_node("h200")))
    assert "8      ?     ?     -" in text
    assert "no permission to list the Pods" in text
    assert "free: " not in text
    assert "knows of no NVIDIA GPU" in plain(gpus_of([]))


def test_a_cluster_without_deployments_says_so() -> None:
    assert plain(top_page([], NOW, width=80)) == "There are no VLLMDeployments."
    assert plain(top_page([], NOW, width=80, namespace="models")) == "There are no VLLMDeployments in models (all: -A)."


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["startup", "conditions", "type", "Ready", "cache", "count"]), inner),
    max_leaves=20,
)


@given(JSON, JSON, JSON)
def test_any_object_has_a_page(status: Any, spec: Any, event: Any) -> None:
    assert status_page({"metadata": {"name": "a"}, "spec": spec, "status": status}, [{"message": event, "count": spec}], NOW, width=80)
