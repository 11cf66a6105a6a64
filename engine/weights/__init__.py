"""Model files as numpy arrays: GGUF and safetensors behind one ``open_checkpoint``. Imports no torch."""
