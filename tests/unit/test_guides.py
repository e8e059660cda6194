"""The large rooms have a guide in their docstring, and it names every module."""

import importlib
import pkgutil
import re

import pytest


@pytest.mark.parametrize("room", ["catalog", "cluster", "planning", "reporting", "runtime"])
def test_the_guide_of_a_room_names_all_its_modules(room: str) -> None:
    package = importlib.import_module(f"vllm_operator.{room}")
    named = set(re.findall(r"\w+", package.__doc__ or ""))
    missing = [module.name for module in pkgutil.iter_modules(package.__path__) if module.name not in named]
    assert not missing, f"say in the docstring of vllm_operator.{room} what these are about"
