"""Hub ids (``org/name``) through huggingface_hub, the only file that imports it."""

from __future__ import annotations

from pathlib import Path

from engine.model_store.errors import ModelNotFound, NetworkError

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.json")
HINT = "hub ids need an extra package: pip install 'callgate[hub]'"


def fetch_snapshot(hub_id: str) -> Path:
    """Directory of the snapshot of ``org/name``, or the one .gguf file of ``org/name:FILE_OR_QUANT``.

    The hub's own cache and resume are used. Raises ModelStoreError with one line.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise ModelNotFound(f"{hub_id!r} looks like a hub id; {HINT}") from error
    repo, _, wanted = hub_id.partition(":")
    patterns = [f"*{wanted}*"] if wanted else list(PATTERNS)
    try:
        directory = Path(huggingface_hub.snapshot_download(repo, allow_patterns=patterns))
    except LocalEntryNotFoundError as error:
        known = "is no file or directory here and not in the local hub cache"
        raise NetworkError(f"no network: {repo} {known}, and the hub did not answer") from error
    except (HfHubHTTPError, ValueError) as error:
        raise ModelNotFound(f"the hub does not give {repo}: {str(error).splitlines()[0][:200]}") from error
    except OSError as error:
        raise NetworkError(f"no network for {repo}: {str(error).splitlines()[0][:200]}") from error
    if not wanted:
        return directory
    found = sorted(directory.rglob("*.gguf"))
    if len(found) != 1:
        raise ModelNotFound(f"{hub_id}: {len(found)} .gguf files match {wanted!r}, one is needed")
    return found[0]
