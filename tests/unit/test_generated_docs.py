"""The generated pages say what the code says, and the links in the docs lead somewhere."""

import re
from pathlib import Path

import pytest

import generate_docs

ROOT = generate_docs.ROOT
PAGES = [
    pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("path", generate_docs.PAGES, ids=lambda path: path.stem)
def test_a_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == generate_docs.PAGES[path](), f"run `make generate` and commit {path.name}"


@pytest.mark.parametrize("path", PAGES)
def test_every_link_to_a_file_leads_to_one(path: Path) -> None:
    targets = [target for target in LINK.findall(path.read_text("utf-8")) if "://" not in target]
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", PAGES)
def test_every_make_target_that_is_mentioned_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    mentioned = set(re.findall(r"(?:^|`|\n)make ([a-z-]+)", path.read_text("utf-8")))
    assert mentioned <= targets


def test_every_reason_has_a_meaning() -> None:
    page = (ROOT / "docs" / "conditions.md").read_text("utf-8")
    reasons = [value for name, value in vars(generate_docs.conditions.Reason).items() if not name.startswith("_")]
    assert [reason for reason in reasons if f"`{reason}`" not in page] == []
