"""What a training step will ask of a cluster, from sizes alone: operations, seconds, bytes. No host is imported here.

One notation: B rollouts per step, P prompt tokens, T response tokens, n = P + T, K segments, N proposals, A tokens of a
probe, G GPUs; L layers, h hidden, a = heads × head size, V vocabulary.
"""
