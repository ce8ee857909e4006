"""Runs after ``openrlhf.utils.utils``: packed rows without flash-attn.

OpenRLHF takes no attention for packed rows whose name lacks ``flash_attention``; transformers asks for kernels where it has it. So
``--ds.attn_implementation sdpa_flash_attention`` means torch's own from here on, for which transformers makes a mask from
position ids that begin again.
"""

from __future__ import annotations

from typing import Any

import openrlhf.utils.utils as host

from rredcot_plugin.integrations.openrlhf_cpu import PACKED

_get_strategy = host.get_strategy


def get_strategy(args: Any) -> Any:
    if args.ds.attn_implementation == PACKED:
        args.ds.attn_implementation = "sdpa"
    return _get_strategy(args)


host.get_strategy = get_strategy
