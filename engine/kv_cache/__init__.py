"""Pages of the KV cache: who holds which, and the prefixes that are kept for later requests."""
