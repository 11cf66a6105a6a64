"""Why a model is not there. Every message is one line that says what to do."""

from __future__ import annotations


class ModelStoreError(Exception):
    """Base of all: the command line prints the message and exits with 1."""


class ModelNotFound(ModelStoreError):
    """The name is no alias, file, directory or hub id that can be found here."""


class NetworkError(ModelStoreError):
    """No source of the model answered."""


class SpaceError(ModelStoreError):
    """The disk cannot hold the model."""


class HashError(ModelStoreError):
    """What came is not what the catalogue promises; it was deleted."""
