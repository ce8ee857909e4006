"""What the benchmarks on values, gradients and learning share: task families, tiny models, rollouts, references."""
