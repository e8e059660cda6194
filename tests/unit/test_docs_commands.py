"""The commands of the docs can be found, and those that no test runs have a reason. tests/cluster/test_docs_commands.py runs the others."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from support.docs_commands import GUIDES, NOT_RUN, PAGES, ROOT, WALK, Command, commands, to_run, unmarked
from vllm_operator.cli import commands as cli
from vllm_operator.cli.commands import add_arguments, read_commands

ALL = [command for page in PAGES for command in commands(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_command_is_marked_as_one(page: Path) -> None:
    assert unmarked(page) == []


def test_the_docs_have_the_commands_that_they_are_about() -> None:
    words = {command.text.split()[0] for command in ALL}
    assert {"kubectl", "helm", "make", "vllm-operator"} <= words
    assert len(ALL) > 60


def test_every_page_with_commands_is_read() -> None:
    assert {page.relative_to(ROOT).as_posix() for page in PAGES if to_run(page)} == {*WALK, *GUIDES}


def test_no_reason_is_left_of_a_command_that_is_gone() -> None:
    assert set(NOT_RUN) - {command.text for command in ALL} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_is_said_in_passing_of_our_commands_is_so(page: Path) -> None:
    """Commands within a sentence: the command exists, and so do its options."""
    unknown = []
    for program, words in re.findall(r"`(vllm-operator|kubectl vllm) ([^`]+)`", page.read_text("utf-8")):
        known = read_commands(plugin=program != "vllm-operator")
        name, *rest = words.split()
        if name.startswith("-"):
            continue
        options = options_of(known[name]) if name in known else set()
        unknown += [f"{program} {name}"] * (name not in known)
        unknown += [
            f"{program} {words}: {word}" for word in rest if word.startswith("-") and word != "-" and word.partition("=")[0] not in options
        ]
    assert unknown == []


def options_of(command: cli.Command) -> set[str]:
    parser = argparse.ArgumentParser()
    add_arguments(parser, command)
    return {option for action in parser._actions for option in action.option_strings}


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_command_can_be_split_and_names_what_there_is(command: Command) -> None:
    words = shlex.split(command.text)
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        assert words[1] in targets
    files = [word for word in words if re.match(r"(examples|charts|hack|crds|docs)/", word)]
    assert [file for file in files if not (ROOT / file).exists()] == []
