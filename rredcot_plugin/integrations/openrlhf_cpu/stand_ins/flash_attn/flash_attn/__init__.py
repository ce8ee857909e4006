"""What ``openrlhf.models.ring_attn_utils`` imports of flash-attn, in torch."""
