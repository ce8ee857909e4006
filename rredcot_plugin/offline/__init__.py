"""Credit for rollouts that already exist, with any causal language model; no training, no host.

| module    | what                                                                              |
| --------- | --------------------------------------------------------------------------------- |
| `rows`    | the columns of a rollout, in verl's names and in plain ones; groups               |
| `prompts` | the text that a model was given: chat templates, and marks that verl's dumps lose |
| `encode`  | rows as tokens, with exact offsets                                                |
| `model`   | load a model; log-probs and entropies with a bounded vocabulary dimension; probes |
| `chunks`  | groups in chunks, a chunk being what a step is in training                        |
| `score`   | one chunk: segments, probes, credit, records                                      |
| `output`  | append, and go on where an earlier run stopped                                    |
| `out_file` | what is not a file to write to                                                    |
| `traits`  | named numbers of scored traces and groups                                         |
| `where`   | conditions on these numbers, parsed and never evaluated as Python                 |

Left out on purpose: generation, `monte_carlo`, critics, reward models (each needs more than one causal model).
"""
