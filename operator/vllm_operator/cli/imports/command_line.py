"""The command line of an engine container: the model and the flags of `vllm serve`."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_operator.catalog.versions import normalize_flag
from vllm_operator.cli.imports.engine import ImportRefusedError

_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main")
_REFERENCE = re.compile(r"\$(?:\(([A-Za-z_]\w*)\)|\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_NEGATIVE = re.compile(r"^-\d")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The model (None if no word names it) and the flags with their values, in their order. `others` are other commands of a script."""

    model: str | None
    flags: tuple[tuple[str, tuple[str, ...]], ...]
    others: tuple[str, ...] = field(default=())


def read_command_line(words: Sequence[str], variables: Mapping[str, str]) -> CommandLine:
    """Read the words of a container's command and args.

    Args:
        words: The words. Those of a shell with a script are the words of the command in the script that starts vLLM.
        variables: Variables with a value, which references such as `$(PORT)` stand for.

    Raises:
        ImportRefusedError: The words do not start a vLLM server, or a variable has no known value.
    """
    others: tuple[str, ...] = ()
    script = _script_of(words)
    if script is not None:
        words, others = _engine_command(script)
    words = [_resolve(word, variables) for word in words]
    return _read_flags(_without_program(words), others)


def _script_of(words: Sequence[str]) -> str | None:
    if not words or words[0] not in _SHELLS:
        return None
    flags = [number for number, word in enumerate(words[:4]) if re.fullmatch(r"-[a-z]*c", word)]
    return words[flags[0] + 1] if flags and len(words) > flags[0] + 1 else None


def _engine_command(script: str) -> tuple[list[str], tuple[str, ...]]:
    """The words of the command that starts vLLM, and the other commands of the script."""
    joined = re.sub(r"\\\n", " ", script)
    commands = [part.strip() for part in re.split(r"\n|;|&&|\|\|", joined) if part.strip() and not part.strip().startswith("#")]
    try:
        split = [(command, shlex.split(command, comments=True)) for command in commands]
    except ValueError as error:
        raise ImportRefusedError(f"the script of the container cannot be read ({error}). Write its command without a shell") from error
    engines = [words for _, words in split if _starts_engine(words)]
    if len(engines) != 1:
        raise ImportRefusedError("the script of the container does not start vLLM with one command. Write this command without a shell")
    engine = engines[0]
    others = tuple(command for command, words in split if words != engine)
    start = next(number for number, word in enumerate(engine) if word != "exec" and "=" not in word)
    return engine[start:], others


def _starts_engine(words: Sequence[str]) -> bool:
    """Whether a command starts the server: `vllm ...`, or Python with one of its modules. Variables and `exec` may come before it."""
    rest = [word for word in words if word != "exec"]
    while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        rest = rest[1:]
    program = rest[0].rpartition("/")[2] if rest else ""
    return program == "vllm" or (program.startswith("python") and any(module in rest for module in _MODULES))


def _resolve(word: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[3]
        if name not in variables:
            raise ImportRefusedError(f"the command line uses the variable {name}, whose value is not in the manifest. Write the value")
        return variables[name]

    return _REFERENCE.sub(value, word) if not word.lstrip().startswith("{") else word


def _without_program(words: Sequence[str]) -> list[str]:
    rest = list(words)
    while rest and not rest[0].startswith("-"):
        word = rest[0].rpartition("/")[2]
        if not (word in ("vllm", "serve", "python", "python3", "exec", "uv", "run", "huggingfaceserver") or word in _MODULES):
            break
        rest = rest[1:]
        if rest[:1] == ["-m"]:
            rest = rest[1:]
    if rest[:1] == ["-m"]:
        rest = rest[2:]
    return rest


def _read_flags(words: Sequence[str], others: tuple[str, ...]) -> CommandLine:
    model: str | None = None
    flags: list[tuple[str, list[str]]] = []
    for number, word in enumerate(words):
        if word.startswith("-") and not _NEGATIVE.match(word) and len(word) > 1:
            name, equals, value = word.partition("=")
            flags.append((normalize_flag(name), [value] if equals else []))
        elif flags:
            flags[-1][1].append(word)
        elif number == 0:
            model = word
        else:
            raise ImportRefusedError(f"the command line has the word {word[:80]} before the first flag, which vLLM does not take")
    return CommandLine(model, tuple((name, tuple(values)) for name, values in flags), others)
