"""docs/backends.md and the pages of the GPUs say what the catalog says."""

import re
from pathlib import Path

import pytest

from generate_backends_doc import FAMILIES, files
from generate_docs import DOCS
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.rules import load_rules

PAGES = files()
MOST_WORDS = 5650


def test_there_is_no_page_of_a_gpu_that_is_gone() -> None:
    assert set((DOCS / "backends").iterdir()) == set(PAGES) - {DOCS / "backends.md"}


def test_every_rule_is_on_a_page() -> None:
    text = "\n".join(PAGES.values())
    assert all(f"`{rule.id}`" in text for rule in load_rules().rules)


def test_every_architecture_has_one_page() -> None:
    architectures = [each for family in FAMILIES for each in family.architectures]
    assert sorted(architectures) == sorted(set(architectures))
    assert set(load_catalog().gpus.architectures) <= set(architectures)


def test_a_page_has_the_rules_of_its_gpu_and_of_no_other() -> None:
    hopper, ada = (PAGES[DOCS / "backends" / f"{name}.md"] for name in ("hopper", "ada"))
    assert "| sm_10x" not in hopper
    assert re.search(r"^\| [^|]*sm_90", hopper, re.MULTILINE)
    assert not re.search(r"^\| [^|]*sm_90[^|]*\|", "\n".join(line for line in ada.splitlines() if "sm_89" not in line), re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_short_enough_to_read(path: Path) -> None:
    assert len(PAGES[path].split()) < MOST_WORDS
