"""Models on disk: aliases, download, cache, and what ``--model`` means."""

from engine.model_store.cache import cache_home, cached_path, list_cached, models_dir
from engine.model_store.catalog import CATALOG, DEFAULT_MODEL
from engine.model_store.errors import ModelStoreError
from engine.model_store.resolve import resolve

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "ModelStoreError",
    "cache_home",
    "cached_path",
    "list_cached",
    "models_dir",
    "resolve",
]
