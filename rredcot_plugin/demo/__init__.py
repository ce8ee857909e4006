"""A complete small workload: gym problems, a rule-based reward and a 1M-parameter reasoner that runs on a CPU."""
