"""Whether the Hugging Face hub answers: where it does not, transformers would ask it for every file for a minute."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

CONNECT_SECONDS = 3.0


def hub_answers() -> bool:
    """False if ``HF_HUB_OFFLINE`` is set, or if the hub's address takes no connection within ``CONNECT_SECONDS``; a proxy
    is not asked, it counts as an answer."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    address = urlsplit(constants.ENDPOINT)
    host = address.hostname or ""
    if {address.scheme, "all"} & set(getproxies()) and not proxy_bypass(host):
        return True
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def first_line(error: Exception) -> str:
    """What an error says first, for a message of one line; the name of its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
