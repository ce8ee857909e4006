"""The demo's language model: a byte tokenizer and a Qwen3 of 1.0M parameters, both Hugging Face standard.

One token is one byte (plus four special tokens), so that token and character offsets are easy to follow by
eye. Left out on purpose: merges, a system prompt, thinking tags, dropout.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

MAX_PROMPT_TOKENS = 64
MAX_RESPONSE_TOKENS = 96
PAD, END_OF_TEXT, IM_START, IM_END = "<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer with one token per byte and a ChatML template; `<|im_end|>` ends a response."""
    special = [PAD, END_OF_TEXT, IM_START, IM_END]
    vocabulary = {token: i for i, token in enumerate(special + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    byte_level = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_level.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level,
        pad_token=PAD,
        eos_token=IM_END,
        additional_special_tokens=[END_OF_TEXT, IM_START],
        padding_side="left",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    *,
    width: int = 128,
    layers: int = 4,
    heads: int = 8,
    kv_heads: int = 4,
    head_dim: int = 32,
) -> Qwen3ForCausalLM:
    """A randomly initialised float32 Qwen3 with grouped-query attention and tied embeddings; by default the demo's."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def prompt_text(tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    """The question in the chat template, up to where the model's response begins."""
    messages = [{"role": "user", "content": question}]
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


@torch.no_grad()
def respond(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: list[str],
    temperature: float = 1.0,
) -> list[str]:
    """One response per question, as text without special tokens.

    `temperature` 0 is greedy; above, the full distribution is sampled from torch's global generator.
    """
    prompts = [prompt_text(tokenizer, question) for question in questions]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    generation = GenerationConfig(
        do_sample=bool(temperature),
        max_new_tokens=MAX_RESPONSE_TOKENS,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **sampling,
    )
    output = model.generate(  # type: ignore[misc]  # its declared self is a protocol that no model class meets
        batch["input_ids"], attention_mask=batch["attention_mask"], generation_config=generation
    )
    responses = output[:, batch["input_ids"].shape[1] :]
    return list(tokenizer.batch_decode(responses, skip_special_tokens=True))
