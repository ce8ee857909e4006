"""What the CPU platforms of the hosts share: generation with transformers, in batches of what arrives together."""
