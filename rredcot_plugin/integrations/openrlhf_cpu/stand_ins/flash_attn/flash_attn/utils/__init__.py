"""Of flash-attn."""
