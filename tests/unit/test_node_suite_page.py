"""The page about the node suite names each of its tests, and no other, and what the tests need."""

import ast
import re
from pathlib import Path

from nodeenv.node import PACKAGES

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "node-suite.md"


def test_each_line_of_the_table_is_a_test_and_each_test_a_line() -> None:
    modules = [ast.parse(path.read_text()) for path in sorted((ROOT / "tests" / "node").glob("test_*.py"))]
    functions = [node.name for module in modules for node in module.body if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)]
    named = re.findall(r"\| `(test_\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(name for name in functions if name.startswith("test_"))


def test_the_page_and_the_workflow_install_what_a_node_needs() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yaml").read_text()
    assert f"apt-get install {PACKAGES}\n" in PAGE.read_text()
    assert f"          {PACKAGES}\n" in workflow
