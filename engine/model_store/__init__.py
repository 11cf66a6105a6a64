"""Models on disk: aliases, download, cache, and what ``--model`` means."""

from engine.model_store.cache import cache_home, cached_path, list_cached, models_dir
from engine.model_store.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry, find_entry
from engine.model_store.errors import HashError, ModelNotFound, ModelStoreError, NetworkError, SpaceError
from engine.model_store.pull import PullObserver, pull
from engine.model_store.resolve import ResolvedModel, resolve

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "CatalogEntry",
    "HashError",
    "ModelNotFound",
    "ModelStoreError",
    "NetworkError",
    "PullObserver",
    "ResolvedModel",
    "SpaceError",
    "cache_home",
    "cached_path",
    "find_entry",
    "list_cached",
    "models_dir",
    "pull",
    "resolve",
]
