"""Read what a folder with a checkpoint says about a model: config.json, the index of the weights, the headers of their files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_operator.cli.documents import read_objects
from vllm_operator.cli.errors import InputError
from vllm_operator.planning.model.facts import ModelFiles
from vllm_operator.planning.model.tensors import LENGTH_BYTES, TensorSizes, add_up, combine, header_length, read_header

FILES_LIMIT = 1024
QUANTIZATION = "hf_quant_config.json"


def read_model_files(path: str) -> ModelFiles:
    """Read a config.json, or the folder of a checkpoint.

    Raises:
        InputError: There is no config.json, or it is not a JSON object.
    """
    folder = Path(path)
    if not folder.is_dir():
        return ModelFiles(_read_object(path))
    config = _read_object(str(folder / "config.json"))
    if "quantization_config" not in config and (folder / QUANTIZATION).is_file():
        config = {**config, "quantization_config": _read_object(str(folder / QUANTIZATION))}
    tensors = _read_tensors(folder)
    return ModelFiles(config, tensors.total if tensors is not None else None, tensors=tensors)


def _read_object(path: str) -> Mapping[str, Any]:
    found = read_objects(path)
    if len(found) != 1:
        raise InputError(f"{path} is not the config.json of a model, which is one JSON object")
    return found[0]


def _read_tensors(folder: Path) -> TensorSizes | None:
    """Sizes of the tensors in all files; None without such files, or if one of them has no header."""
    paths = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated"))[:FILES_LIMIT]
    found = list(_sizes_of(paths))
    return combine(each for each in found if each is not None) if found and None not in found else None


def _sizes_of(paths: list[Path]) -> Iterator[TensorSizes | None]:
    for path in paths:
        try:
            with path.open("rb") as file:
                length = header_length(file.read(LENGTH_BYTES))
                data = file.read(length) if length is not None else b""
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
        header = read_header(data) if len(data) == length else None
        yield None if header is None else add_up(header)
