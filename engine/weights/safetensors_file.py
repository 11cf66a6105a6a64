"""safetensors with its header checked before anything is mapped: lengths, offsets, overlaps, sizes.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, TypeGuard

from engine.weights.errors import WeightsError
from engine.weights.tensors import MappedFile, RawTensor, make_tensor

_MAX_HEADER: Final = 100_000_000
_MAX_DIMS: Final = 8
_MAX_NUMBER: Final = 1 << 63
_SUPPORTED: Final = "float32, float16, bfloat16 and, for quantized weights, int32 and float8_e4m3"
_DTYPES: Final = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "F8_E4M3": 1}
"""The last two hold quantized weights, which only engine.quantization reads."""
INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"


class SafetensorsFile:
    """``tensors`` by name, views into the mapped file. WeightsError for any inconsistency."""

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        self.path = path
        self.tensors: dict[str, RawTensor] = {}
        header, start = self._header()
        spans: list[tuple[int, int, str]] = []
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = self._add(name, entry, start)
                spans.append((begin, end, name))
        self._check_cover(sorted(spans), start)

    def _header(self) -> tuple[dict[str, Any], int]:
        if self.file.size < 8:
            raise WeightsError(f"{self.path}: not a safetensors file (only {self.file.size} bytes)")
        length = int.from_bytes(bytes(self.file.data[:8]), "little")
        if length > min(_MAX_HEADER, self.file.size - 8):
            raise WeightsError(
                f"{self.path}: its header claims {length} bytes of {self.file.size}: "
                "incomplete, or not a safetensors file"
            )
        header = parse_json_object(bytes(self.file.data[8 : 8 + length]), f"{self.path}: safetensors header")
        return header, 8 + length

    def _add(self, name: str, entry: object, start: int) -> tuple[int, int]:
        where = f"{self.path}: tensor {name}"
        if not isinstance(entry, dict):
            raise WeightsError(f"{where} has no description")
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise WeightsError(f"{where} has dtype {dtype}; {_SUPPORTED} are supported")
        if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or len(shape) > _MAX_DIMS:
            raise WeightsError(f"{where} has a damaged shape or offsets")
        begin, end = start + offsets[0], start + offsets[1]
        if end > self.file.size:
            raise WeightsError(f"{where} ends at byte {end}, the file at {self.file.size}: the file is incomplete")
        size = math.prod(shape) * _DTYPES[dtype]
        if end - begin != size:
            raise WeightsError(f"{where} has {end - begin} bytes, its shape {shape} of {dtype} needs {size}")
        if size == 0:
            raise WeightsError(f"{where} is empty")
        self.tensors[name] = make_tensor(dtype, tuple(shape) or (1,), self.file.data[begin:end])
        return begin, end

    def _check_cover(self, spans: list[tuple[int, int, str]], start: int) -> None:
        position, last = start, "the header"
        for begin, end, name in spans:
            if begin < position:
                raise WeightsError(f"{self.path}: tensor {name} overlaps {last}")
            position, last = end, name


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _MAX_NUMBER for item in value)


def parse_json_object(text: bytes, source: str) -> dict[str, Any]:
    """The JSON object in ``text``; duplicate keys are refused, since two readers would disagree on them."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise WeightsError(f"{source} names a key twice")
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except WeightsError:
        raise
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, a number of more digits than Python reads
        raise WeightsError(f"{source} is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise WeightsError(f"{source} is not a JSON object")
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror or error})") from None
    return parse_json_object(text, str(path))


def open_safetensors(directory: Path) -> list[SafetensorsFile]:
    """All shards of a model directory. Shard names may not leave the directory, and each tensor that the
    index promises must be in the shard it names."""
    index_path = directory / INDEX_NAME
    if not index_path.exists():
        return [SafetensorsFile(directory / SINGLE_NAME)]
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index_path}: weight_map is missing")
    shards: dict[str, SafetensorsFile] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise WeightsError(f"{index_path}: {name!r} is no shard file name")
        if name not in shards:
            shards[name] = SafetensorsFile(directory / name)
        if tensor not in shards[name].tensors:
            raise WeightsError(f"{directory / name}: tensor {tensor} is missing, though the index names it here")
    return list(shards.values())
