"""Continuous batching: which tokens of which requests are computed next. No torch, no sockets, no clock but one."""
