"""The caches of a start, what each costs, and how its files look.

Where a cache is follows from the variables that the real component reads, and from its default where none is set. This
is written down in `caches.json` a second time, from the components, on purpose: a test that took it from the operator's own
table would not notice what that table forgets.

Seconds are for a DeepSeek-V3-shaped FP8 model (4 layers) on one H200 with vLLM 0.20.1: 458.8 cold, 34.9 warm. Those of
FlashInfer, DeepGEMM and the compiled model are measured, the others are what is left, spread evenly. Both starts found
Python's bytecode beside the sources. What a container without it pays was measured with a Llama of 1.1B: 42.2 s, and 28.6 s with it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WARM_SECONDS = 34.9


@dataclass(frozen=True)
class Cache:
    """One cache: `units` are compiled one after the other, each into a file of its own; `file` names it.

    It is paid for before the recorded line that holds `before`. `told` are words of the recorded lines that are printed
    only while it is built, none for the silent ones.
    """

    name: str
    seconds: float
    units: int
    variable: str
    default: str
    file: str
    before: str
    below: str = ""
    switch: str = ""
    told: Sequence[str] = ()

    def directory(self, environment: Mapping[str, str]) -> Path | None:
        """Where it is; None if it is switched off, and everything is compiled at each start."""
        if self.switch and environment.get(self.switch) != "1":
            return None
        root = environment.get(self.variable) or _default(self.default, environment)
        return Path(root) / self.below if self.below else Path(root)


def _default(text: str, environment: Mapping[str, str]) -> str:
    """A path that begins in the home, in vLLM's own folder or in the folder for temporary files."""
    home = environment.get("HOME", "/root")
    root = environment.get("VLLM_CACHE_ROOT") or f"{environment.get('XDG_CACHE_HOME') or home + '/.cache'}/vllm"
    begin, slash, rest = text.partition("/") if not text.startswith("/tmp") else ("/tmp", "/", text.removeprefix("/tmp/"))
    place = {"~": home, "$VLLM_CACHE_ROOT": root, "/tmp": environment.get("TMPDIR", "/tmp")}[begin]
    return place + slash + rest.replace("$USER", environment.get("USER", "root"))


BYTECODE = "Python's bytecode"

CACHES = tuple(Cache(**each) for each in json.loads(Path(__file__).with_name("caches.json").read_text("utf-8")))
"""In the order of the file. Python's default is beside the sources, which is as lost with the container as /tmp."""
