"""Idle OpenMP threads sleep in tests too: several test processes share the cores."""

from engine.platform.host import calm_openmp

calm_openmp()
