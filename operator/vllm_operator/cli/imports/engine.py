"""A deployed engine, whatever tool wrote it: its command line, and the report about its import."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, dropwhile, pairwise
from math import prod
from typing import Any

from vllm_operator.api.reading import read_integer
from vllm_operator.catalog.versions import normalize_flag
from vllm_operator.cli.inputs import InputError

_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main")
_PROGRAMS = ("vllm", "serve", "python", "python3", "exec", "uv", "run", "huggingfaceserver", *_MODULES)
REFERENCE = re.compile(r"\$(?:\(([A-Za-z_]\w*)\)|\{([A-Za-z_]\w*|@)(?::?-(?P<default>[^}]*))?\}|([A-Za-z_]\w*|@))")
"""A reference to a variable: `$(NAME)` of Kubernetes, `$NAME`, `${NAME}` and `${NAME:-default}` of a shell, and `$@`."""
_COMMAND = re.compile(
    r"""#[^\n]*|(?:'[^']*'|"(?:\\.|[^"\\])*"|\$\([^()]*\)|\\.|(?<=\S)#|(?<!&)&(?!&)|(?<!\|)\|(?!\|)|[^\n;&|#])+""", re.DOTALL
)
"""A comment or a command of a script. What is in quotes does not end it."""
_COMPUTED = re.compile(r"\$\(\((?P<product>[^()]+)\)\)|\$\(\w*[^\w()][^()]*\)|`[^`]*`")
"""What a shell computes: `$((A * B))`, and the output of a command."""
_BEFORE_PROGRAM = re.compile(r"(exec|env|export|nohup|then|else|do|fi|done)\Z|[A-Za-z_]\w*=")
_REDIRECTION = re.compile(r"&?\d*>>?(&?\S+)?\Z|[|<&]\Z")
_MERGED = ("args", "command", "containers", "env", "envFrom", "imagePullSecrets", "initContainers", "volumeMounts", "volumes", "words")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class ImportRefusedError(InputError):
    """A deployment cannot be imported. The message says why, and what the user can do."""


@dataclass(slots=True)
class Report:
    """Sentences about what was kept as it is, written differently, dropped, and not read, and what the user should look at."""

    kept: list[str] = field(default_factory=list)
    translated: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    def sections(self) -> list[tuple[str, list[str]]]:
        """Return the parts with a title, each sentence once, without empty parts."""
        return [(name.capitalize(), list(dict.fromkeys(sentences))) for name, sentences in asdict(self).items() if sentences]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. A text is empty if the manifest does not contain it.

    `source` is what was read, for the report. `container` and `pod` are as in a Pod; the words of the command line are in the container's
    `args` alone. `model` is where the tool gets the model from (hf://, pvc://, or what the operator cannot read) and `served_name` its name
    for clients, if they are not in these words. `adapters` have a `name`, a `uri` (or what the operator cannot read), and perhaps a
    `tokenSecretRef`. `nodes` is the number of its Pods. `metadata` has their labels and annotations. `version` is that of vLLM, if the
    image does not say it. `spec` has parts of the VLLMDeployment's spec. `report` has settings without a counterpart, and what the user
    should know.
    """

    source: str
    name: str
    report: Report
    namespace: str = ""
    container: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)
    nodes: int | None = None
    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    model: str = ""
    served_name: str = ""
    adapters: Sequence[Mapping[str, Any]] = ()
    version: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The model, if a word names it, the flags with their values, and of a script the other commands and the variables that it sets."""

    model: str | None
    flags: tuple[tuple[str, tuple[str, ...]], ...]
    others: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def values_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the values of the last of these flags that has any: vLLM takes the last, too."""
        return next((values for flag, values in reversed(self.flags) if flag in names and values), ())


def put(target: dict[str, Any], path: str, value: Any) -> None:
    """Set a field such as `model.revision`, or a list of one entry such as `imagePullSecrets[].name`."""
    name, _, rest = path.partition(".")
    inner = target.get(name, {}) if rest else merged(target.get(name), value, name)
    if rest:
        put(inner, rest, value)
    target[name.removesuffix("[]")] = [inner] if name.endswith("[]") else inner


def merged(base: Any, own: Any, name: str = "") -> Any:
    """Merge parts of a Pod: fields of objects, and lists that Kubernetes merges. Of another field, the own value counts if there is one."""
    if isinstance(base, dict) and isinstance(own, dict):
        return {field: merged(base.get(field), own.get(field), field) for field in {**base, **own}}
    if name in _MERGED and isinstance(base, list) and isinstance(own, list):
        return [*base, *own]
    return base if own in (None, "") or (isinstance(base, dict | list) and not isinstance(own, type(base))) else own


def words_of_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return settings such as `maxModelLen: 4096` as words of a command line: `--max-model-len=4096`."""
    words: list[str] = []
    for name, value in settings.items():
        flag = _CAMEL.sub("-", str(name)).lower().replace("_", "-")
        if value is None or value == "":
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words.append(f"--{flag}={json.dumps(value) if isinstance(value, dict) else value}")
    return words


def split_words(source: str, text: str) -> list[str]:
    """Split a text into words as a shell does. Raises ImportRefusedError, which names the source, if a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ImportRefusedError(f"{source} cannot be split into words ({error}). Check its quotes") from error


def read_command_line(words: Sequence[str], variables: Mapping[str, str]) -> CommandLine:
    """Read the words of a container's command and args; of a script, only the command that starts vLLM. Raises ImportRefusedError."""
    others, own = list[str](), dict[str, str]()
    if (script := _script_of(words)) is not None:
        words, others, own = _read_script(script, variables)
    rest = _without_program([_resolve(word, variables) for word in words])
    model = rest.pop(0) if rest and not _is_flag(rest[0]) else None
    flags: list[tuple[str, list[str]]] = []
    for word in rest:
        if _is_flag(word):
            name, equals, value = word.partition("=")
            flags.append((normalize_flag(name), [value] if equals else []))
        elif flags:
            flags[-1][1].append(word)
        else:
            raise ImportRefusedError(f"vLLM does not take the word {word[:80]} before the first flag of: {' '.join(words)[:80]}")
    return CommandLine(model, tuple((name, tuple(values)) for name, values in flags), tuple(others), own)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not word[1].isdecimal()


def _script_of(words: Sequence[str]) -> str | None:
    rest = [word for word in words if word != "--"]
    pairs = pairwise(rest[:5]) if rest and rest[0] in _SHELLS else ()
    return next((script for word, script in pairs if re.fullmatch(r"-[a-z]*c", word)), None)


def _read_script(script: str, variables: Mapping[str, str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the words of the command that starts vLLM, the other commands, and the variables that the script sets."""
    engines, others, own, passed = list[list[str]](), list[str](), dict[str, str](), dict[str, str]()
    commands = [part.strip() for part in _COMMAND.findall(script.replace("\\\n", " ")) if part.strip() and not part.startswith("#")]
    for command in commands:
        words = split_words("the script of the container", _COMPUTED.sub(partial(_compute, variables={**variables, **own}), command))
        program = list(dropwhile(_BEFORE_PROGRAM.match, words))
        if program and not _starts_engine(program):
            others.append(command)
            continue
        for name, equals, value in (word.partition("=") for word in words[: len(words) - len(program)]):
            resolved = _resolve(value, {**variables, **own})
            if equals and any(mark in resolved for mark in "$`"):
                others.append(f"{name}={resolved}")
            elif equals:
                own[name] = resolved
                passed |= {name: resolved} if program or words[0] == "export" else {}
        if program:
            end = next((index for index, word in enumerate(program) if _REDIRECTION.match(word)), len(program))
            resolve = ((word, _resolve(word, {**variables, **own})) for word in program[:end])
            # a shell splits the value of a variable into words: vllm serve $MORE_ARGS
            parts = (split_words(f"the value of {word}", value) if REFERENCE.fullmatch(word) else [value] for word, value in resolve)
            engines.append([*chain.from_iterable(parts)])
            others += [" ".join(program[end:])] if program[end:] else []
    leaders = [words for words in engines if "--headless" not in words]
    others += [" ".join(words) for words in engines if "--headless" in words]
    if len(leaders) != 1:
        raise ImportRefusedError("the script of the container does not start vLLM with one command. Write this command without a shell")
    return leaders[0], others, passed


def _compute(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return a product of known numbers. What is not known stays, as one word."""
    factors = [_resolve(word, variables).strip() for word in (match["product"] or "").split("*")]
    numbers = [read_integer(variables.get(factor, factor)) for factor in factors]
    return "".join(match[0].split()) if None in numbers else str(prod(number or 0 for number in numbers))


def _starts_engine(words: Sequence[str]) -> bool:
    program = words[0].rpartition("/")[2] if words else ""
    return program == "vllm" or (program.startswith("python") and any(module in words for module in _MODULES))


def names_in(value: str) -> set[str]:
    """Return the names of the variables to which a value refers, and what a shell computes in it."""
    computed = {match[0] for match in _COMPUTED.finditer(value)}
    return computed | {next(filter(None, match.groups())) for match in REFERENCE.finditer(value)}


def _resolve(word: str, variables: Mapping[str, str]) -> str:
    """Put values in the place of variables. A variable without a known value stays, unless it has a default."""
    known = {match[0]: variables.get(min(names_in(match[0])), match["default"]) for match in REFERENCE.finditer(word)}
    return REFERENCE.sub(lambda match: match[0] if known[match[0]] is None else str(known[match[0]]), word)


def _without_program(words: Sequence[str]) -> list[str]:
    rest = list(words)
    while rest and rest[0].rpartition("/")[2] in _PROGRAMS:
        rest = rest[2 if rest[1:2] == ["-m"] else 1 :]
    return rest[2:] if rest[:1] == ["-m"] else rest
