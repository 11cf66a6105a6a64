"""Models: one file per family; engine.models.registry names them."""
