"""Runs after `verl.trainer.ppo.v1.replay_buffer`: poll every 0.2 s for finished rollouts instead of every 2 s.

A step of a tiny model takes about a second, and the interval is a constructor argument that no key of verl's
configuration reaches (`sampler_kwargs` goes to custom samplers only, and those lose verl's group filters).
"""

from __future__ import annotations

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from rredcot_plugin.integrations.verl_cpu.override import set_default

POLL_INTERVAL_SECONDS = 0.2

set_default(ReplayBuffer.__init__, "poll_interval", POLL_INTERVAL_SECONDS)
