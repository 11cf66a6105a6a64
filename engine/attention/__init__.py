"""Attention over paged KV: the pool, the backends, and who is chosen when."""
