"""A folder of results that survive an interruption: written whole or not at all, checked when read again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

Tensors = dict[str, torch.Tensor]

SHIPPED = Path(__file__).parent.parent / "models"
"""Files of the stores that come with the project: another machine's arithmetic makes models that are not the same to the
last bit, and then go ways of their own."""


class Store:
    """``json`` and ``tensors`` return what a file holds, or make it and write it.

    A file's name has a digest of the settings it was made with, so other settings make another file; its first
    line is the digest of the rest. A file that does not agree with it is named, and made again. Tensors that the folder
    lacks are taken from ``SHIPPED``, where they are there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def json(self, name: str, settings: Any, make: Callable[[], Any]) -> Any:
        path = self.path(name, settings, "json")
        body = read_checked(path)
        if body is None:
            made = make()
            write_checked(path, json.dumps(made).encode())
            return made
        return json.loads(body)

    def tensors(self, name: str, settings: Any, make: Callable[[], Tensors]) -> Tensors:
        path = self.path(name, settings, "tensors")
        body = read_checked(path)
        if body is None:
            body = read_checked(SHIPPED / path.name)
        if body is not None:
            try:
                return load_tensors(body)
            except SafetensorError as error:
                print(f"{path}: no tensors inside ({error}); made again", flush=True)
        made = {key: tensor.detach().clone().contiguous() for key, tensor in make().items()}
        write_checked(path, save_tensors(made))
        return made

    def path(self, name: str, settings: Any, suffix: str) -> Path:
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        return self.folder / f"{name}-{digest}.{suffix}"


def read_checked(path: Path, again: str = "made again") -> bytes | None:
    """The body of a file of ``write_checked``; None where there is none, or a broken one, which is said: it is
    ``again``."""
    if not path.exists():
        return None
    digest, _, body = path.read_bytes().partition(b"\n")
    if digest == hashlib.sha256(body).hexdigest().encode():
        return body
    print(f"{path}: corrupted (its content does not have the digest of its first line); {again}", flush=True)
    return None


def write_checked(path: Path, body: bytes) -> None:
    """Write ``body`` after a line with its digest, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(f"{path.suffix}.{os.getpid()}.half")
    half.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    half.replace(path)
