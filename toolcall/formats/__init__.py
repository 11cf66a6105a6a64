"""One file per family of formats; toolcall.registry lists them."""
