"""Text without secrets: what the environment hides never reaches a config dump, a log or a service.

A secret is known by its variable's name and found by its value, wherever a user may have put it.
"""

import os
import re
from typing import Any

# WANDB_API_KEY, HF_TOKEN, RAY_AUTH_TOKEN, AWS_SECRET_ACCESS_KEY, …; not TOKENIZERS_PARALLELISM.
_SECRET_NAME = re.compile(r"(^|_)(API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)$")
# A shorter value is a word like `true`, and would be blotted out all over a config.
_MIN_CHARACTERS = 8


def redacted(text: str) -> str:
    """The text with every secret of the environment replaced by `<NAME>` of its variable."""
    for name, value in os.environ.items():
        is_secret = len(value) >= _MIN_CHARACTERS and _SECRET_NAME.search(name.upper())
        if is_secret and value in text:
            text = text.replace(value, f"<{name}>")
    return text


def without_secrets(value: Any) -> Any:
    """The same nested mappings and lists with `redacted` texts; keys stay."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(inner) for inner in value]
    return value
