"""Reference pages and Hydra groups, generated from the code: `python -m rredcot_plugin.reference --write .`

| module          | writes                                                                                 |
| --------------- | -------------------------------------------------------------------------------------- |
| `configuration` | docs/reference/configuration.md from `options.py`, the presets and the registries       |
| `metric_names`  | the registry of everything that is logged                                               |
| `metrics`       | docs/reference/metrics.md from it                                                       |
| `groups`        | rredcot_plugin/conf/rredcot/*.yaml from `options.py`, the presets and verl's estimators |
"""
