"""What a configuration means before anything runs: every value, where it comes from, what is chosen and why, what it costs.

| module             | what                                                                                  |
| ------------------ | ------------------------------------------------------------------------------------- |
| `explain`          | the explanation of a script, of overrides on verl's configuration, or of bare options |
| `verl`, `openrlhf` | that of a run of each                                                                 |
| `answer`           | what an explanation says: a row for every option, costs, warnings and notes           |
| `cost`             | what the options add to a step, at most                                               |
| `tables`           | the same in the terminal                                                              |

Nothing here decides anything: reasons come from `rredcot_plugin.choices` and from `integrations/verl/settings.py`.
"""
