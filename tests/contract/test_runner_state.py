"""Weights, mini-batches, checkpoints and continuations of the runner."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl.advice import warn_of_pointless
from rredcot_plugin.integrations.verl.batch import BatchSource, column_entries
from rredcot_plugin.integrations.verl.runner import STATE_FILE
from rredcot_plugin.integrations.verl.settings import read_settings
from rredcot_plugin.values.fit import WEIGHT
from tests.contract.memory import (
    PARTITION,
    Actor,
    MemoryQueue,
    assert_credited,
    expected,
    key_of,
    lay_down,
    make_trainer,
    step,
)
from tests.contract.runner_steps import (
    NEWLINE,
    config,
    queue,  # noqa: F401  fixtures
)
from tests.contract.test_verl_options import verl_config
from tests.unit.test_group_work import bare_rows


def make_separate(queue: MemoryQueue, backend: str, *overrides: str, **attributes: Any) -> Any:
    """A trainer in the second of two mini-batches of a step, whose first update has changed the weights from 0 to 1."""
    trainer = make_trainer(
        queue,
        {**NEWLINE, "probe_backend": backend},
        "trainer.v1.separate_async.parameter_sync_step=2",
        *overrides,
        mode="separate_async",
        parameter_sync_step=2,
        **attributes,
    )
    trainer.actor_rollout_wg.saved, trainer.actor_rollout_wg.weights = {0: 0}, 1
    trainer.local_trigger_step = 1
    return trainer


@pytest.mark.parametrize("backend", ["cached", "batched"])
def test_probes_and_old_log_probs_are_those_of_the_same_weights(queue: MemoryQueue, backend: str) -> None:
    """verl loads the weights that the step began with around the log-prob pass of every later mini-batch."""
    rows = bare_rows()
    trainer = make_separate(queue, backend)
    found = step(trainer, lay_down(queue, rows))
    passes = ["log-probs", "probes"] if backend == "batched" else ["log-probs"]
    assert trainer.actor_rollout_wg.calls == ["save 1", "restore 0", *passes, "restore 1", "clear 1"]
    assert trainer.actor_rollout_wg.weights == 1
    credit, _ = expected(rows, config(), weights=0)
    assert_credited(found, rows, credit)
    later, _ = expected(rows, config(), weights=1)
    assert not torch.allclose(later.advantages, credit.advantages, atol=1e-3)


def test_an_engine_that_does_not_answer_is_replaced_under_the_same_weights(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer = make_separate(queue, "cached", actor_rollout_wg=Actor(queue, answers=False))
    assert_credited(step(trainer, lay_down(queue, rows)), rows, expected(rows, config(), weights=0)[0])


def test_the_first_mini_batch_keeps_its_weights(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer = make_separate(queue, "batched")
    trainer.local_trigger_step, trainer.actor_rollout_wg.saved = 0, {}
    found = step(trainer, lay_down(queue, rows))
    assert trainer.actor_rollout_wg.calls == ["save 0", "log-probs", "probes"]
    assert_credited(found, rows, expected(rows, config(), weights=1)[0])


def test_a_run_without_log_prob_pass_says_whose_values_later_mini_batches_have(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bypass = ("algorithm.rollout_correction.bypass_mode=True", "actor_rollout_ref.rollout.n=4")
    separate = ("trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=2")
    unprobed = (*bypass, *separate, "+algorithm.rredcot.value_estimator=confidence")
    for overrides in (bypass, (*separate, "actor_rollout_ref.rollout.n=4"), unprobed):
        given = verl_config(*overrides)
        warn_of_pointless(given, read_settings(given))
        assert not caplog.text
    given = verl_config(*bypass, "trainer.v1.trainer_mode=colocate_async")
    warn_of_pointless(given, read_settings(given))
    assert "trainer.v1.trainer_mode=colocate_async may be newer than those that sampled" in caplog.text
    assert "parameter_sync_step" not in caplog.text
    given = verl_config(*bypass, *separate)
    warn_of_pointless(given, read_settings(given))
    assert "trainer.v1.separate_async.parameter_sync_step=2" in caplog.text
    assert "Set bypass_mode=False" in caplog.text


def test_the_window_is_kept_from_step_to_step(queue: MemoryQueue) -> None:
    trainer, calibrator = make_trainer(queue, NEWLINE), config().build_calibrator()
    for seed in range(3):
        rows = bare_rows(seed=seed)
        credit, _ = expected(rows, config(), calibrator)
        assert_credited(step(trainer, lay_down(queue, rows, seed=seed)), rows, credit)
    fresh, _ = expected(rows, config())
    assert not torch.allclose(fresh.advantages, credit.advantages, atol=1e-3), "as if there were no past"


@pytest.mark.parametrize(("by_path", "weight"), [(False, "0"), (True, "auto")])
def test_a_resumed_run_goes_on_as_an_uninterrupted_one(
    queue: MemoryQueue, tmp_path: Path, by_path: bool, weight: str
) -> None:
    """Through verl's own saving and loading; in the way lies a folder of a later step, with another state."""
    folder = f"trainer.default_local_dir={tmp_path / 'run'}"
    options = (NEWLINE, f"+algorithm.rredcot.credit_weight={weight}")
    trainer = make_trainer(queue, *options, folder)
    for seed in range(2):
        step(trainer, lay_down(queue, bare_rows(seed=seed), seed=seed))
    trainer._save_checkpoint()
    saved = tmp_path / "run" / "global_step_2"
    assert torch.load(saved / STATE_FILE, weights_only=True)["outcome"], "the window"
    assert not list(saved.glob("*.part"))
    rows = bare_rows(seed=2)
    metrics: dict[str, Any] = {}
    wanted = step(trainer, lay_down(queue, rows), metrics)
    assert (metrics.get(WEIGHT, 0.0) > 0) == (weight == "auto")
    resume = [folder]
    if by_path:
        saved = saved.rename(tmp_path / "moved_global_step_2")
        resume = [f"trainer.default_local_dir={tmp_path / 'other'}", "trainer.resume_mode=resume_path"]
        resume.append(f"trainer.resume_from_path={saved}")
        (tmp_path / "other" / "global_step_2").mkdir(parents=True)
    resumed = make_trainer(queue, *options, *resume)
    resumed._load_checkpoint()
    assert resumed.global_steps == 2
    found = step(resumed, lay_down(queue, rows))
    assert all(torch.equal(found[key], advantages) for key, advantages in wanted.items())


def test_a_checkpoint_without_state_is_told(
    queue: MemoryQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_trainer(queue, NEWLINE).rredcot.load(str(tmp_path))
    assert f"{tmp_path}/{STATE_FILE} is missing" in caplog.text


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign"])
def test_a_damaged_state_is_named_with_the_way_out(queue: MemoryQueue, tmp_path: Path, damage: str) -> None:
    torch.save({"someone": "else's"}, path := tmp_path / STATE_FILE)
    if damage != "foreign":
        path.write_bytes(path.read_bytes()[: 300 if damage == "cut" else 0])
    with pytest.raises(ValueError, match=rf"{path} cannot be read .*remove it"):
        make_trainer(queue, NEWLINE).rredcot.load(str(tmp_path))


def test_a_run_from_scratch_loads_nothing(
    queue: MemoryQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(queue, NEWLINE, f"trainer.default_local_dir={tmp_path}")
    trainer._load_checkpoint()
    assert trainer.global_steps == 0
    assert STATE_FILE not in caplog.text


def test_advantages_without_a_log_prob_pass_are_refused(queue: MemoryQueue) -> None:
    trainer = make_trainer(queue, NEWLINE)
    batch = lay_down(queue, bare_rows())
    step(trainer, batch)
    with pytest.raises(ValueError, match="before the log-prob pass of this step"):
        trainer._compute_advantage(batch, {})


class Server:
    """Continues a prefix with one token that the prefix and the seed decide; ``refuses`` some prefixes."""

    def __init__(self, refuses: Any = lambda prefix: False) -> None:
        self.refuses = refuses

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        if self.refuses(prompt_ids):
            raise RuntimeError("out of memory")
        return SimpleNamespace(token_ids=[11 + len(prompt_ids) % 3])


def outcome_of(response: list[int]) -> float:
    """A reward that depends on every token of the response."""
    return sum((place + 1) * token for place, token in enumerate(response)) % 17 / 17


class Rewards:
    class compute_score:  # noqa: N801  looks like a Ray method
        @staticmethod
        async def remote(data: Any) -> dict[str, float]:
            assert data.non_tensor_batch["reward_model"][0] == {"ground_truth": "2"}
            return {"reward_score": outcome_of(data.batch["responses"][0].tolist())}


def sampled(queue: MemoryQueue, server: Server, rows: PromptedRollouts) -> tuple[Any, Any]:
    """A trainer after sampling these rows, and the batch as it comes to the log-prob pass: balanced and padded."""
    batch = lay_down(queue, rows)
    unpadded = [i for i, key in enumerate(batch.keys) if not key.startswith("pad")][::-1]
    first = SimpleNamespace(
        keys=[batch.keys[i] for i in unpadded], tags=[batch.tags[i] for i in unpadded], partition_id=PARTITION
    )
    trainer = make_trainer(
        queue,
        {**NEWLINE, "value_estimator": "monte_carlo", "value_kwargs": "{samples:1}"},
        "actor_rollout_ref.rollout.name=vllm",
        replay_buffer=SimpleNamespace(sample=lambda: (first, {})),
        get_llm_client=lambda: server,
        get_reward_handles=lambda: [Rewards()],
        checkpoint_manager=SimpleNamespace(sleep_replicas=lambda: None),
        curr_step_profile=False,
    )
    trainer.replay_buffer.sample()
    trainer.on_sample_end()
    return trainer, batch


def continued(rows: PromptedRollouts, refuses: Any = lambda prefix: False) -> torch.Tensor:
    """The value before each segment but the first: the reward of its prefix with one more token."""
    _, segments = expected(rows, config())
    scores = torch.full(rows.rollouts.rewards.shape, torch.nan)
    for row, length in enumerate(rows.lengths):
        if not bool(rows.rollouts.response_mask[row, :length].all()):
            continue
        for column in segments.starts[row, 1 : int(segments.num_segments[row])].tolist():
            prefix = rows.rollouts.token_ids[row, :column].tolist()
            whole = [*rows.prompts[row].tolist(), *prefix]
            if not refuses(whole):
                scores[row, column] = outcome_of([*prefix, 11 + len(whole) % 3])
    return scores


def test_continuations_are_scored_with_their_prefix_and_found_again_by_key(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer, batch = sampled(queue, Server(), rows)
    credit, _ = expected(
        rows, config(value_estimator="monte_carlo"), token_scores={"monte_carlo": continued(rows)}
    )
    assert_credited(step(trainer, batch), rows, credit)


def test_a_failed_continuation_is_missing_and_not_a_value_of_0(queue: MemoryQueue) -> None:
    def refuses(prefix: list[int]) -> bool:
        return len(prefix) % 5 == 0

    rows = bare_rows()
    trainer, batch = sampled(queue, Server(refuses), rows)
    metrics: dict[str, Any] = {}
    found = step(trainer, batch, metrics)
    assert 0 < metrics["rredcot/monte_carlo/failed/mean"] < 1
    scores = continued(rows, refuses)
    own = config(value_estimator="monte_carlo")
    credit, _ = expected(rows, own, token_scores={"monte_carlo": scores})
    assert_credited(found, rows, credit)


def test_arrays_in_a_column_stay_arrays() -> None:
    """They have a field ``data`` as verl's wrappers do, which is their memory."""
    column = [np.array([1.5, 2.0]), np.str_("7"), NonTensorData({"answer": "7"}), None]
    found = column_entries(column)
    assert found is not None and found[0] is column[0]
    assert found[1:] == ["7", {"answer": "7"}, None]


def test_what_is_read_of_a_row(queue: MemoryQueue) -> None:
    rows = bare_rows()
    lay_down(queue, rows)
    key = key_of(rows, 3)
    stored = queue.rows[PARTITION, key]
    stored["rollout_log_probs"][1] = torch.nan
    stored["rm_scores"] = torch.zeros(rows.lengths[3])
    stored["rm_scores"][3] = 2.0  # a masked token
    stored["extra_info"] = {"references": "2"}
    (other,) = [key_of(rows, 4)]
    queue.rows[PARTITION, other]["extra_info"] = {}
    read = BatchSource([key, other], PARTITION).rows()
    assert torch.isfinite(read.rollouts.log_probs).all()
    before = int(rows.rollouts.response_mask[3, :3].nonzero()[-1])
    assert float(read.rollouts.rewards[0, before]) == 2.0, "on the token of the model's own before it"
    assert float(read.rollouts.rewards[0, 3]) == 0.0
    assert read.rollouts.references == ["2", None]
    assert read.lengths == [rows.lengths[3], rows.lengths[4]]
    assert BatchSource([other, key], PARTITION).take([1]).rows().lengths == [rows.lengths[3]]
    fields = BatchSource([key], PARTITION).reward_fields()
    assert fields == [
        {
            "uid": rows.rollouts.group_ids[3],
            "reward_model": {"ground_truth": "2"},
            "extra_info": {"references": "2"},
        }
    ]
