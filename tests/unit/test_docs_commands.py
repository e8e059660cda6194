"""The commands of the docs can be found, and those that no test runs have a reason. tests/cluster/test_docs_commands.py runs the others."""

import re
import shlex

import pytest

from support.docs_commands import NOT_RUN, PAGES, ROOT, Command, commands, unmarked

ALL = [command for page in PAGES for command in commands(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_command_is_marked_as_one(page: object) -> None:
    assert unmarked(page) == []  # type: ignore[arg-type] # a parameter


def test_the_docs_have_the_commands_that_they_are_about() -> None:
    words = {command.text.split()[0] for command in ALL}
    assert {"kubectl", "helm", "make", "vllm-operator"} <= words
    assert len(ALL) > 60


def test_no_reason_is_left_of_a_command_that_is_gone() -> None:
    assert set(NOT_RUN) - {command.text for command in ALL} == set()


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_command_can_be_split_and_names_what_there_is(command: Command) -> None:
    words = shlex.split(command.text)
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        assert words[1] in targets
    files = [word for word in words if re.match(r"(examples|charts|hack|crds|docs)/", word)]
    assert [file for file in files if not (ROOT / file).exists()] == []
