"""RREDCoT in stock OpenRLHF: ``python -m rredcot_plugin.integrations.openrlhf`` with OpenRLHF's own flags.

Nothing of OpenRLHF is replaced before it is asked for. With ``--algo.advantage.estimator rredcot`` (``rredcot_ppo``, ``red``) every
process of the run gets additions, each right after the import of the module that it belongs to:

| after the import of                 | runs           | which gives OpenRLHF                                          |
| ----------------------------------- | -------------- | ------------------------------------------------------------- |
| ``openrlhf.trainer.ray.launcher``   | `reward_actor` | a reward model that also gives its score at every token       |
| ``openrlhf.utils.agent``            | `agent`        | what reward functions and agents say of parts of a response   |
| ``…ppo_utils.samples_generator``    | `samples`      | experiences that keep it                                      |
| ``openrlhf.trainer.ray.ppo_actor``  | `actor`        | a policy actor whose log-prob pass also answers probes        |
| ``openrlhf.trainer.ppo_trainer``    | `maker`        | an experience maker that gives credit                         |
|                                     | `trainer`      | trainers that log metrics, and keep the fit in checkpoints    |

With any other estimator there are none, and the run is OpenRLHF's own.
"""

SUPPORTED_OPENRLHF = "0.11.2"

OPTIONS = "RREDCOT_OPENRLHF"
"""Environment variable of every process of a run: its estimator and ``algo.rredcot`` as JSON. Unset where another one trains."""
