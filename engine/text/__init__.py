"""Text to token ids and back: tokenizers from GGUF files and from tokenizer.json, stop strings. No torch."""
