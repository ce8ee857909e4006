"""The gradient benchmark on tiny reasoners: counted sampling, sketched gradients, methods, statistics."""
