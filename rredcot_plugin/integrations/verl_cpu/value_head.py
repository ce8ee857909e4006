"""Runs after `verl.utils.model`: a critic whose attention is the one it is configured with.

verl loads every value model with FlashAttention 2, whatever `override_config.attn_implementation` says, and where
that package is missing it asks for trl.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from transformers import AutoModelForTokenClassification
from verl.utils import model


@wraps(model.load_valuehead_model)
def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
    )


model.load_valuehead_model = load_valuehead_model
