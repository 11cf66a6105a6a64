"""From logits to tokens on the host: filters, penalties, draws that depend on seed and position alone, logprobs."""
