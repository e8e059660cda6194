"""The first page about the code names files and functions that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_path_on_the_first_page_exists() -> None:
    page = (ROOT / "docs/design/how-it-works.md").read_text()
    package = ROOT / "operator/vllm_operator"
    paths = set(re.findall(r"`([a-z0-9_/]+(?:\.py|\.yaml|/))`", page))
    data = package / "catalog/data"
    places = (package, ROOT, data, *(each for each in package.iterdir() if each.is_dir()), package / "planning/placement")
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(paths) > 40
    missing = [path for path in paths if path not in tests and not any((place / path).exists() for place in places)]
    assert not missing


def test_every_path_on_the_first_page_that_names_a_function_has_it() -> None:
    page = (ROOT / "docs/design/how-it-works.md").read_text()
    named = re.findall(r"`([a-z_/]+\.py)`, `(_?[a-z_]+)`", page)
    assert named
    for path, function in named:
        assert f"def {function}(" in (ROOT / "operator/vllm_operator" / path).read_text()


def test_the_docstring_of_each_package_names_its_modules() -> None:
    package = ROOT / "operator/vllm_operator"
    for init in package.glob("*/**/__init__.py"):
        parts = [path.stem for path in init.parent.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
        words = set(re.findall(r"\w+", init.read_text()))
        assert {part for part in parts if not part.startswith("__")} <= words, init
