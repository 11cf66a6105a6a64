"""The layers of a decoder: they know shapes and sharding. Arithmetic of linears is in engine.quantization."""
