"""The actors whose gradients a benchmark measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lab.devices import CPU
from lab.lm.tasks import LM
from lab.lm.weights import WeightsError
from lab.models import CleanTraining, folder_name, load_models, load_tokenizer, measure_last_layers
from lab.rollouts import Actor
from lab.store import Store
from lab.tasks import FAMILIES


def measured_actors(
    families: Sequence[str], training: CleanTraining, store: Store, device: str = CPU
) -> Iterator[tuple[Actor, Store]]:
    """The actor of each family, and where its own files go; of a language model only the last layers ask for a gradient.

    Ends the program where the language model's weights are missing or changed.
    """
    try:
        models = load_models(store, training, {FAMILIES[name].model for name in families}, device)
    except WeightsError as error:
        raise SystemExit(f"error: {error}") from None
    if LM in models:
        measure_last_layers(models[LM])
    for name in families:
        family = FAMILIES[name]
        actor = Actor(family, models[family.model], load_tokenizer(family.model))
        yield actor, Store(store.folder / folder_name(family, training))
