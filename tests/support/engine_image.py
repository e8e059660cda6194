"""What the image of the stand-in engine is built from: its program, recorded logs and the words of known crashes."""

import shutil
from pathlib import Path
from textwrap import dedent

import engine.caches
import testenv.replay
from engine.recording import FIRST_START
from vllm_operator.catalog.startup import load_signature_samples

ROOT = Path(__file__).parent.parent.parent
CORPUS = ROOT / "tests" / "corpus"
CRASHES = ("poison-triton-cubin-empty", "no-c-compiler", "gpu-util-too-low", "mig-uuid", "hf-offline-missing")
"""Recorded starts that end in a crash."""
OF_RANKS = "h100-*-rank?"
"""Recorded starts on two nodes."""


def gather_engine(folder: Path) -> Path:
    """Gather it all in a folder, and return the folder."""
    source = Path(str(engine.caches.__file__)).parent
    program = folder / "engine"
    shutil.copytree(source, program, ignore=shutil.ignore_patterns("__pycache__", "Dockerfile"))
    shutil.copy(source / "Dockerfile", folder)
    (folder / "testenv").mkdir()
    (folder / "testenv" / "__init__.py").touch()
    for module in ("replay", "cri"):
        shutil.copy(Path(str(testenv.replay.__file__)).parent / f"{module}.py", folder / "testenv")
    (program / "recordings").mkdir()
    for path in (*(CORPUS / "h200" / f"{name}.log" for name in (FIRST_START, *CRASHES)), *(CORPUS / "nodes").glob(f"{OF_RANKS}.log")):
        shutil.copy(path, program / "recordings")
    (program / "samples").mkdir()
    for sample in load_signature_samples():
        path = program / "samples" / f"{sample.signature}.txt"
        if not path.exists():  # the first of several
            # a frame at the margin is none; the message of an exception stands there
            path.write_text((sample.text if sample.text.startswith("  File ") else dedent(sample.text)) + "\n")
    return folder


def gather_compiled_engine(folder: Path, image: str) -> Path:
    """Gather what turns the engine's image into one that brings Python's bytecode, and return the folder."""
    folder.mkdir()
    (folder / "Dockerfile").write_text(f"FROM {image}\nRUN PYTHONDONTWRITEBYTECODE= python3 -m compileall -q /engine\n")
    return folder
