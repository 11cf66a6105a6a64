"""Which attention backend serves a model: the one asked for or, with ``auto``, the first that does not refuse."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from engine.attention.backend import AttentionBackendFactory, AttentionSpec

_BACKENDS: Final = {
    "flash": ("engine.attention.flash_backend", "FlashBackend"),
    "triton": ("engine.attention.triton_backend", "TritonBackend"),
    "sdpa": ("engine.attention.sdpa", "SdpaBackend"),
}
"""Name -> module and class, best first. A module is imported only when it is considered."""


class NoAttentionBackend(ValueError):
    """No backend accepts this model. The message says why each one refused."""


def choose_backend(name: str, spec: AttentionSpec) -> tuple[str, AttentionBackendFactory]:
    """``(name, class)``; NoAttentionBackend where a named backend refuses, or all do."""
    if name != "auto" and name not in _BACKENDS:
        raise NoAttentionBackend(f"Attention backend '{name}' is not built; there are {', '.join(_BACKENDS)}.")
    reasons = []
    for candidate in _BACKENDS if name == "auto" else [name]:
        module, attribute = _BACKENDS[candidate]
        factory = cast(AttentionBackendFactory, getattr(import_module(module), attribute))
        reason = factory.refuses(spec)
        if reason is None:
            return candidate, factory
        reasons.append(f"{candidate}: {reason}")
    raise NoAttentionBackend("No attention backend can be used: " + "; ".join(reasons))
