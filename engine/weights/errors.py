"""What every reader of model files raises."""

from __future__ import annotations


class WeightsError(ValueError):
    """A model file that cannot be used. The message is one line, names the file and says what is wrong."""
