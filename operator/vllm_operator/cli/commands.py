"""The commands and their arguments: `commands.yaml`, which explains its form. Quick to import."""

import argparse
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from vllm_operator.api.labels import SHORT_NAME

Command = Mapping[str, Any]
"""`runs`, `summary`, and perhaps `arguments` and `epilog`."""


@cache
def _read() -> Mapping[str, Any]:
    text = resources.files("vllm_operator.cli").joinpath("commands.yaml").read_text("utf-8")
    content: Mapping[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return content


def read_commands(*, plugin: bool = False) -> Mapping[str, Command]:
    """Return the commands of `vllm-operator` by name, or with `plugin` those of `kubectl vllm`, which diagnoses a Pod instead of a file."""
    commands: Mapping[str, Command] = _read()["commands"]
    of_plugin = (name for name in commands if name not in ("run", "diagnose", "diagnose-pod"))
    return {"diagnose": commands["diagnose-pod"], **{name: commands[name] for name in of_plugin}} if plugin else commands


def add_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    """Declare the arguments of a command."""
    parser.epilog = command.get("epilog")
    _add(parser, command.get("arguments", ()), {})


def _add(parser: argparse.ArgumentParser, entries: Iterable[str | Mapping[str, Any]], groups: dict[str, Any]) -> None:
    for entry in entries:
        if isinstance(entry, str):
            _add(parser, _read()["shared"][entry], groups)
            continue
        for names, parameters in entry.items():
            options = {name: value for name, value in parameters.items() if name != "group"}
            if "type" in options:
                options["type"] = _TYPES[options["type"]]
            if (group := parameters.get("group")) is not None and group not in groups:
                groups[group] = parser.add_mutually_exclusive_group()
            groups.get(group, parser).add_argument(*names.split(), **options)


def object_name(given: str) -> str:
    """Return the name of a VLLMDeployment from NAME or, as in output of kubectl, vllm/NAME: a type of argparse."""
    return given.removeprefix(f"{SHORT_NAME}/")


_TYPES = {"int": int, "float": float, "object_name": object_name}
