"""The generated files say what the code says, and the links in the docs lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import generate
import generate_chart
import generate_docs
import site_pages
from vllm_operator.api import conditions
from vllm_operator.status.knowledge import load_knowledge

ROOT = generate_docs.ROOT
PAGES = [
    pytest.param(path, id=path.relative_to(ROOT).as_posix())
    for path in [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), ROOT / "examples" / "README.md", generate_chart.README]
]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("generator", generate.GENERATORS, ids=lambda generator: generator.__name__)
def test_what_is_generated_is_up_to_date(generator: ModuleType) -> None:
    for path, text in generator.files().items():
        assert path.read_text("utf-8") == text, f"run `make generate` and commit {path.name}"


@pytest.mark.parametrize("path", PAGES)
def test_no_code_shows_what_only_escapes_it(path: Path) -> None:
    """In a code span, an entity and a backslash before a bar are shown as they are written."""
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"(?ms)^```.*?^```", "", path.read_text("utf-8")))
    assert [span for span in spans if "&lt;" in span or "\\|" in span] == []


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("a | b < c", "a \\| b &lt; c"),
        ("one<br>two <b", "one<br>two &lt;b"),
        ("`--flag <0.2`", "`--flag <0.2`"),
        ("`(a|b)<c` or\n d", "<code>(a&#124;b)&lt;c</code> or d"),
        ("an odd ` backtick | x", "an odd ` backtick \\| x"),
    ],
)
def test_text_is_escaped_for_a_table_cell(text: str, cell: str) -> None:
    assert generate_docs.table_cell(text) == cell


def test_a_guide_without_the_marks_of_a_table_is_refused() -> None:
    """Otherwise its rest would be lost."""
    for page in ("# Guide\n", "# Guide\n<!-- fields of a rule, by `make generate` -->\nrest\n"):
        with pytest.raises(ValueError, match="fields of a rule"):
            generate_docs.with_tables(page, {"rule": []})


@pytest.mark.parametrize("path", PAGES)
def test_every_link_to_a_file_leads_to_one(path: Path) -> None:
    targets = [target for target in LINK.findall(path.read_text("utf-8")) if "://" not in target]
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", PAGES)
def test_every_make_target_that_is_mentioned_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    mentioned = set(re.findall(r"(?:^|`|\n)make ([a-z-]+)", path.read_text("utf-8")))
    assert mentioned <= targets


def test_every_page_has_a_place_on_the_site_and_every_place_a_page() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")} | set(site_pages.ROOT_PAGES.values())
    assert set(places(site["nav"])) == pages, "a new page goes into `nav` in mkdocs.yml"


def places(entries: list[dict[str, Any]]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from places(value)


@pytest.mark.parametrize(
    ("page", "link", "want"),
    [
        ("", "[x](docs/caches.md#priming)", "[x](caches.md#priming)"),
        ("", "![x](docs/images/demo.svg)", "![x](images/demo.svg)"),
        ("", "[x](CONTRIBUTING.md)", "[x](contributing.md)"),
        ("", "[x](examples)", "[x](examples.md)"),
        ("", "[x](crds)", "[x](https://repository/tree/main/crds)"),
        ("examples", "[x](minimal.yaml)", "[x](https://repository/blob/main/examples/minimal.yaml)"),
        ("docs", "[x](../Dockerfile)", "[x](https://repository/blob/main/Dockerfile)"),
        ("docs", "[x](caches.md)", "[x](caches.md)"),
        ("docs/design", "[x](../security.md)", "[x](../security.md)"),
        ("docs", "[x](../CHANGELOG.md)", "[x](changelog.md)"),
        ("docs", "[x](https://example.com/a)", "[x](https://example.com/a)"),
        ("docs", "[x](#below)", "[x](#below)"),
        ("docs", "[x](../nowhere.md)", "[x](../nowhere.md)"),
    ],
)
def test_a_link_leads_to_the_site_or_else_to_the_repository(page: str, link: str, want: str) -> None:
    root, _, folder = page.partition("/")
    assert site_pages.with_links(link, root, folder, "https://repository") == want


def test_every_reason_to_which_a_message_links_has_a_page() -> None:
    reported = {
        name
        for name, _, group in generate_docs._documented(conditions.Reason)
        if group not in ("status.cache", conditions.NOT_REPORTED_REASONS)
    }
    names = {getattr(conditions.Reason, name) for name in reported} | load_knowledge().documented
    assert names <= site_pages.reason_pages().keys()
    assert all(text.count("\n\n") >= 1 for text in site_pages.reason_pages().values())


def test_every_reason_that_is_reported_has_a_meaning() -> None:
    """Verdicts with the others say no more than the state of the plan, the caches and the rollout."""
    said_elsewhere = {"PLANNED", "GPU_UNKNOWN", "HIT", "MISS", "NOT_REPORTED", "STARTED", "VALID", "NOT_ACCEPTED", "NOT_PLANNED"}
    absent = {getattr(conditions.Reason, name) for name in said_elsewhere}
    page = (ROOT / "docs" / "conditions.md").read_text("utf-8")
    reasons = [value for name, value in vars(conditions.Reason).items() if not name.startswith("_")]
    assert {reason for reason in reasons if f"`{reason}`" not in page} == absent
