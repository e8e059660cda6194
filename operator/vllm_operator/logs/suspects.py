"""The settings that an error may be about: those whose code its traceback passes, and those whose value its message quotes."""

import re
from collections.abc import Mapping

from vllm_operator.catalog.error_forms import load_error_forms
from vllm_operator.catalog.versions import normalize_flag

_ARGUMENT, _VALUE = re.compile(r"'(\w{2,60})': "), re.compile(r"'([^'\s]{4,120})'(?!:)")


def read_arguments(line: str) -> Mapping[str, str]:
    """Return the arguments in the line that lists them, by name, each with its value as written. What is off is left out."""
    found, depth, end = [], 0, 0
    for each in _ARGUMENT.finditer(line):
        between, end = line[end : each.start()], each.start()
        depth += sum(map(between.count, "{[(")) - sum(map(between.count, ")]}"))
        if depth == 1:
            found.append(each)
    ends = (*(each.start() for each in found[1:]), len(line))
    values = ((each[1], line[each.end() : end].rstrip(", }")) for each, end in zip(found, ends, strict=False))
    return {name: value for name, value in values if value not in ("False", "None")}


def avoid_code(arguments: Mapping[str, str], shown: str, assigned: str) -> str:
    """Return how to start without the code that `shown` names, the frames and the message of an error; empty if nothing turns it off.

    That is without the optional features that are on, or else with a setting. `assigned`: variables that the log shows with their values.
    """
    forms = load_error_forms()
    features = [normalize_flag(name) for name, code in forms.features.items() if name in arguments and code.search(shown)]
    if features:
        return f"without {' and '.join(features)}"
    return next((f"with {setting}" for setting, code in forms.switches.items() if code.search(shown) and setting not in assigned), "")


def find_quoted(arguments: Mapping[str, str], message: str) -> Mapping[str, str]:
    """Return the values that the message quotes, by the flag that has them. A value of two flags, or a usual word, tells nothing."""
    forms, flags = load_error_forms(), dict[str, list[str]]()
    for name, written in arguments.items():
        for value in _VALUE.findall(written) if forms.not_quoted.fullmatch(name) is None else ():
            flags.setdefault(value, []).append(normalize_flag(name))
    words = (value for value in flags if len(flags[value]) == 1 and (f"'{value}'" in message or not forms.usual.fullmatch(value)))
    return {flags[value][0]: value for value in words if re.search(rf"(?<![\w./-]){re.escape(value)}(?![\w/-])", message)}
