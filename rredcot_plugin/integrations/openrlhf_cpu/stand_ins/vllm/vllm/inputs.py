"""A prompt as tokens."""


class TokensPrompt(dict):
    """``prompt_token_ids``."""
