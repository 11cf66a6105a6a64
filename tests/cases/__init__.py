"""Runs files of tool-call cases: ``python -m tests.cases FILE.jsonl``."""
