"""Try a recipe without its GPUs: the script's own configuration, data and reward, two steps on the CPU.

| module         | what                                                                              |
| -------------- | --------------------------------------------------------------------------------- |
| `launch`       | run the script with stand-ins for Python, Ray and SLURM: what would it start?     |
| `stand_in`     | the stand-ins                                                                     |
| `configure`    | compose that with verl's configuration, and let verl and rredcot check it         |
| `batches`      | sizes that must divide each other, lengths that must fit                          |
| `data`         | the recipe's data, or its sample where they are not here; are the columns there?  |
| `reward`       | the recipe's reward on the data's own solutions and on hopeless responses         |
| `tools`        | an agent's tools, built as verl builds them, and a call for the tiny model        |
| `architecture` | the model's configuration and tokenizer, its parameters, and a tiny random one    |
| `warm_start`   | some seconds of supervised training, so that some of its responses earn a reward  |
| `memory_estimate` | memory a GPU, tokens of probes                                                    |
| `trial`        | what the two steps train on                                                       |
| `outcome`      | what they came to, whichever trainer made them                                    |
| `training`     | two steps of stock verl on the CPU with the recipe's overrides                    |
| `rehearsal`    | all of it in order, up to the first thing that is wrong                           |
| `openrlhf`, `openrlhf_training` | the same for a recipe of OpenRLHF                                |

Everything that is wrong with a recipe is raised as `RecipeError`, in one line.
"""
