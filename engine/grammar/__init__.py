"""Constrained decoding: grammars from clients and tools, compiled, checked early and followed token by token."""
