"""Whole steps of verl's own trainer methods through the plugin, without Ray (``memory.py``): every number that comes
out is compared with what the core alone makes of the same rows, whatever their order."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.trainer.ppo import core_algos

import rredcot_plugin as rr
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.advice import warn_of_pointless
from rredcot_plugin.integrations.verl.batch import BatchSource
from rredcot_plugin.integrations.verl.runner import STATE_FILE, CreditRunner
from rredcot_plugin.integrations.verl.settings import read_settings
from rredcot_plugin.probes.layout import unpack
from rredcot_plugin.report.traces import read_dumps
from tests.contract.memory import (
    PARTITION,
    TEMPERATURE,
    Actor,
    MemoryQueue,
    assert_credited,
    expected,
    key_of,
    lay_down,
    make_trainer,
    probe_log_prob,
    step,
    token_log_probs,
)
from tests.contract.test_verl import verl_config
from tests.unit.test_group_work import TOKENIZER, bare_rows

NEWLINE = {"segmenter": "newline"}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> MemoryQueue:
    return MemoryQueue(monkeypatch)


def config(**options: Any) -> rr.RRedCoTConfig:
    return rr.RRedCoTConfig(**{"segmenter": "newline", "scale": "group_std", **options})


# ---- rows and answers


@pytest.mark.parametrize("backend", ["cached", "packed", "batched"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_step_gives_every_row_the_credit_of_its_own_tokens(queue: MemoryQueue, backend: str, seed: int) -> None:
    rows = bare_rows(seed=seed)
    trainer = make_trainer(queue, {**NEWLINE, "probe_backend": backend})
    metrics: dict[str, Any] = {}
    found = step(trainer, lay_down(queue, rows, seed=seed), metrics)
    credit, _ = expected(rows, config())
    assert_credited(found, rows, credit)
    assert all(float(found[f"pad_{i}_0"].abs().max()) == 0 for i in range(3))
    assert metrics["rredcot/probes/in_pass/mean"] == (backend != "batched")
    for name, value in credit.metrics.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("backend", ["cached", "batched"])
def test_a_dump_says_of_what_answers_its_values_are_made(queue: MemoryQueue, tmp_path: Path, backend: str) -> None:
    """Without calibration V̂ is what the answers are worth above the lowest reward, weighted by their probabilities."""
    options = {**NEWLINE, "calibrate": "none", "dump_dir": str(tmp_path), "probe_backend": backend}
    step(make_trainer(queue, options), lay_down(queue, bare_rows()))
    traces = read_dumps(tmp_path)
    lowest = min(trace.reward for trace in traces)
    assert lowest == -1.0
    compared = 0
    for trace in traces:
        for i, segment in enumerate(trace.segments[1:], start=1):
            if trace.proposals and all(one.kind == "group" for one in trace.proposals):
                worth = lowest + sum(one.probabilities[i] * (one.utility - lowest) for one in trace.proposals)
                assert segment.value == pytest.approx(worth, rel=5e-3, abs=2e-6)
                compared += 1
    assert compared > len(traces) / 2
    assert json.loads((tmp_path / "run.json").read_text())["options"]["calibrate"] == "none"


def test_the_engine_is_asked_once_and_not_again_in_later_passes(queue: MemoryQueue) -> None:
    trainer = make_trainer(queue, NEWLINE)
    batch, metrics = lay_down(queue, bare_rows()), {}
    after = trainer._compute_old_log_prob(batch, metrics)
    actor = trainer.actor_rollout_wg
    assert actor.calls == ["log-probs"]
    assert actor.infos[0][transfer_fields.BACKEND] == "cached"
    assert transfer_fields.BACKEND not in batch.extra_info
    assert transfer_fields.BACKEND not in after.extra_info, (
        "the pass of the reference model would run the probes again"
    )
    assert metrics["timing_s/rredcot_probes"] == pytest.approx(0.25 * len(batch.keys) / 2), "per GPU"


def test_probes_as_rows_have_the_temperature_of_the_rollout_and_fill_the_micro_batches(queue: MemoryQueue) -> None:
    micro_batches = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=7"
    trainer = make_trainer(queue, {**NEWLINE, "probe_backend": "batched"}, micro_batches)
    step(trainer, lay_down(queue, bare_rows()))
    actor = trainer.actor_rollout_wg
    assert actor.calls == ["log-probs", "probes"]
    assert actor.infos[1]["temperature"] == TEMPERATURE
    assert actor.infos[1]["rows"] % 14 == 0, "two GPUs times seven rows"
    assert {partition for partition, _ in queue.rows} == {PARTITION}, "nothing is left behind"


def test_an_engine_that_does_not_answer_has_probes_run_as_rows_from_the_same_step_on(
    queue: MemoryQueue, caplog: pytest.LogCaptureFixture
) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, NEWLINE, actor_rollout_wg=Actor(queue, answers=False))
    credit, _ = expected(rows, config())
    metrics: dict[str, Any] = {}
    assert_credited(step(trainer, lay_down(queue, rows), metrics), rows, credit)
    assert "cannot run probes in the log-prob pass" in caplog.text
    assert metrics["rredcot/probes/in_pass/mean"] == 0
    step(trainer, lay_down(queue, rows, seed=2))
    assert trainer.actor_rollout_wg.calls == ["log-probs", "probes"] * 2


def test_a_wrong_answer_of_one_row_moves_nothing_of_other_groups(queue: MemoryQueue) -> None:
    """Every row's log-probs are its own: rows of a group without a usable probe fall back, others keep theirs."""
    rows = bare_rows()
    options = {**NEWLINE, "calibrate": "none", "baseline": "value"}
    trainer = make_trainer(queue, options)
    run, actor = Actor._run, trainer.actor_rollout_wg
    broken = key_of(rows, 4)

    def breaks(self: Actor, row: dict[str, Any], info: dict[str, Any]) -> None:
        run(self, row, info)
        if row is queue.rows[PARTITION, broken] and transfer_fields.LOG_PROBS in row:
            row[transfer_fields.LOG_PROBS][1:] = torch.nan

    actor._run = breaks.__get__(actor)
    found = step(trainer, lay_down(queue, rows))
    credit, _ = expected(rows, config(calibrate="none", baseline="value"))
    for row, length in enumerate(rows.lengths):
        if rows.rollouts.group_ids[row] != rows.rollouts.group_ids[4]:
            assert torch.allclose(found[key_of(rows, row)], credit.advantages[row, :length], atol=1e-5)
    assert not torch.allclose(found[broken], credit.advantages[4, : rows.lengths[4]], atol=1e-3)
    assert torch.isfinite(found[broken]).all()


def test_a_plane_in_memory_is_enough(queue: MemoryQueue) -> None:
    """A host needs the protocol alone (``adapter.data_plane.DataPlane``), not TransferQueue's fields or keys."""
    rows = bare_rows()
    plane = Held(rows, {})
    trainer = make_trainer(queue, {})
    runner = CreditRunner(trainer, config(), lambda batch, index: plane.take(list(index)))
    runner.attach_tokenizer(TOKENIZER)
    keys = [f"{row}_0_0" for row in range(len(rows.lengths))]
    batch = SimpleNamespace(keys=keys, tags=[{"response_len": n} for n in rows.lengths], extra_info={})
    runner.compute_old_log_prob(batch, {}, lambda given, metrics: given)
    rewards = rows.rollouts.rewards
    advantages, _ = runner.compute_advantage(batch, {})(rewards, rows.rollouts.response_mask.long())
    credit, _ = expected(rows, config())
    assert torch.allclose(advantages, credit.advantages, atol=1e-5)


@dataclasses.dataclass(frozen=True)
class Held:
    """Rows held in memory, and the probes that were laid down for them."""

    held: PromptedRollouts
    probes: dict[int, torch.Tensor]
    index: list[int] | None = None

    @property
    def _index(self) -> list[int]:
        return list(range(len(self.held.lengths))) if self.index is None else self.index

    def take(self, index: list[int]) -> Held:
        return dataclasses.replace(self, index=[self._index[i] for i in index])

    def group_ids(self) -> list[str]:
        return [str(self.held.rollouts.group_ids[i]) for i in self._index]

    def rows(self) -> PromptedRollouts:
        return self.held.take(self._index)

    def _traces(self) -> list[torch.Tensor]:
        rows = self.rows()
        return [torch.cat([p, rows.rollouts.token_ids[i, : rows.lengths[i]]]) for i, p in enumerate(rows.prompts)]

    def signals(self, width: int) -> dict[str, torch.Tensor]:
        found = torch.zeros(len(self._index), width)
        for i, trace in enumerate(self._traces()):
            own = token_log_probs(trace, 0, TEMPERATURE)[len(self.rows().prompts[i]) :]
            found[i, : len(own)] = torch.tensor(own)
        return {"log_probs": found, "entropies": found.abs().sqrt()}

    def numbers(self, fields: Any, width: int) -> list[torch.Tensor]:
        return []

    def put_probes(self, vectors: Any) -> None:
        self.probes.update(zip(self._index, vectors, strict=True))

    def put_answer_starts(self, starts: Any) -> None: ...

    def reward_fields(self) -> list[dict[str, Any]]:
        return []

    def answers(self) -> list[torch.Tensor]:
        specs = [unpack(self.probes[i]) for i in self._index]
        found = [
            [probe_log_prob(trace, spec, 0, TEMPERATURE) for spec in row]
            for trace, row in zip(self._traces(), specs, strict=True)
        ]
        return [torch.tensor([0.0, *own]) for own in found]


# ---- rewards, penalties and what else is read


def test_a_kl_penalty_stays_on_its_tokens(queue: MemoryQueue) -> None:
    rows = bare_rows()
    controller = core_algos.get_kl_controller(verl_config().algorithm.kl_ctrl)
    trainer = make_trainer(queue, NEWLINE, "algorithm.use_kl_in_reward=True", kl_ctrl_in_reward=controller)
    controller.value = 0.5
    batch, metrics = lay_down(queue, rows), {}
    trainer._compute_old_log_prob(batch, metrics)
    penalties = torch.zeros(rows.rollouts.rewards.shape)
    for row, length in enumerate(rows.lengths):
        stored = queue.rows[PARTITION, key_of(rows, row)]
        kl = torch.arange(length) % 4 / 8.0
        stored["ref_log_prob"] = stored["old_log_probs"] - kl
        penalties[row, :length] = -0.5 * kl * rows.rollouts.response_mask[row, :length]
    for key in batch.keys:
        queue.rows[PARTITION, key].setdefault("ref_log_prob", queue.rows[PARTITION, key]["old_log_probs"])
    trainer._compute_advantage(batch, metrics)
    found = {key: queue.rows[PARTITION, key]["advantages"] for key in batch.keys}
    rewards = rows.rollouts.rewards + penalties
    credit, _ = expected(rows, config(), rewards=rewards, penalties=penalties)
    assert_credited(found, rows, credit)
    spread, _ = expected(rows, config(), rewards=rewards)
    assert not torch.allclose(spread.advantages, credit.advantages, atol=1e-2), "as if it were part of the outcome"


def test_signals_are_the_actors_and_keep_their_names(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, {**NEWLINE, "value_estimator": "confidence", "baseline": "value"})
    found = step(trainer, lay_down(queue, rows))
    own = config(value_estimator="confidence", baseline="value")
    credit, _ = expected(rows, own)
    assert_credited(found, rows, credit)
    before = rows.rollouts.log_probs
    others, _ = expected(rows, own, log_probs=before)
    assert not torch.allclose(others.advantages, credit.advantages, atol=1e-3), "those of the rollout engine"


@pytest.mark.parametrize("options", [{}, {"segmenter": "none"}, {"value_estimator": "confidence"}])
def test_squares_are_asked_of_the_pass_and_measured_from(queue: MemoryQueue, options: dict[str, Any]) -> None:
    rows, options = bare_rows(), {"baseline": "token", **options}
    trainer = make_trainer(queue, {**NEWLINE, **options})
    batch = lay_down(queue, rows)
    found = step(trainer, batch)
    assert trainer.actor_rollout_wg.infos[0][transfer_fields.SQUARES] is True
    assert transfer_fields.SQUARES not in batch.extra_info, "later passes would sum squares again"
    squares = torch.zeros(rows.rollouts.rewards.shape)
    for row, length in enumerate(rows.lengths):
        squares[row, :length] = queue.rows[PARTITION, key_of(rows, row)][transfer_fields.SUM_PI_SQUARED]
    credit, _ = expected(rows, config(**options), sum_pi_squared=squares)
    assert_credited(found, rows, credit)
    plain, _ = expected(rows, config(**{**options, "baseline": "trace"}))
    assert not torch.allclose(plain.advantages, credit.advantages, atol=1e-2)


def test_squares_are_not_asked_for_in_vain(queue: MemoryQueue) -> None:
    trainer = make_trainer(queue, NEWLINE)
    step(trainer, lay_down(queue, bare_rows()))
    assert transfer_fields.SQUARES not in trainer.actor_rollout_wg.infos[0]


def test_a_critics_values_are_read_where_they_belong(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, NEWLINE, "algorithm.adv_estimator=rredcot_ppo", use_critic=True)
    batch, values = lay_down(queue, rows), torch.zeros(rows.rollouts.rewards.shape)
    trainer._compute_old_log_prob(batch, {})
    for key in batch.keys:
        stored = queue.rows[PARTITION, key]
        stored["values"] = (stored["responses"] % 7).float() / 7
    for row, length in enumerate(rows.lengths):
        values[row, :length] = queue.rows[PARTITION, key_of(rows, row)]["values"]
    trainer._compute_advantage(batch, {})
    own = read_settings(trainer.config)
    credit, _ = expected(rows, own, token_scores={"critic": values})
    assert_credited({key: queue.rows[PARTITION, key]["advantages"] for key in batch.keys}, rows, credit)
    for row, length in enumerate(rows.lengths):
        returns = queue.rows[PARTITION, key_of(rows, row)]["returns"]
        assert torch.allclose(returns, credit.returns[row, :length], atol=1e-5), "what the critic is to learn"


def test_attribution_is_asked_of_every_row_and_read_by_its_own(queue: MemoryQueue) -> None:
    rows = bare_rows()
    options = {**NEWLINE, "value_estimator": "attention", "lam": 0.9}
    trainer = make_trainer(queue, options)
    batch = lay_down(queue, rows)
    found = step(trainer, batch)
    _, segments = expected(rows, config())
    scores = torch.zeros(rows.rollouts.rewards.shape)
    for row, length in enumerate(rows.lengths):
        stored = queue.rows[PARTITION, key_of(rows, row)]
        scores[row, :length] = stored[transfer_fields.SCORES["attention"]]
        count = int(segments.num_segments[row])
        first = int((segments.segment_ids[row] == count - 1).float().argmax())
        assert int(stored[transfer_fields.ANSWER_START]) == (len(rows.prompts[row]) + first if count > 1 else -1)
    assert all(int(queue.rows[PARTITION, f"pad_{i}_0"][transfer_fields.ANSWER_START]) == -1 for i in range(3))
    own = config(value_estimator="attention", lam=0.9)
    credit, _ = expected(rows, own, token_scores={"attention": scores})
    assert_credited(found, rows, credit)
    assert transfer_fields.ATTRIBUTION not in batch.extra_info


def test_squares_of_probabilities_are_asked_for_and_read_by_row(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, {"segmenter": "none", "baseline": "token"})
    batch = lay_down(queue, rows)
    found = step(trainer, batch)
    squares = torch.zeros(rows.rollouts.rewards.shape)
    for row, length in enumerate(rows.lengths):
        squares[row, :length] = queue.rows[PARTITION, key_of(rows, row)][transfer_fields.SUM_PI_SQUARED]
    credit, _ = expected(rows, config(segmenter="none", baseline="token"), sum_pi_squared=squares)
    assert_credited(found, rows, credit)
    assert transfer_fields.SQUARES not in batch.extra_info


# ---- sessions


def test_earlier_outputs_of_a_session_share_and_do_not_count(queue: MemoryQueue) -> None:
    """Ten outputs before the last one of row 5: as text, its number 10 comes before 9."""
    rows = bare_rows()
    trainer = make_trainer(queue, NEWLINE)
    found = step(trainer, lay_down(queue, rows, earlier={5: 10, 7: 1}))
    credit, _ = expected(rows, config())
    assert_credited(found, rows, credit, row_5=10, row_7=1)
    for row, count in ((5, 10), (7, 1)):
        session = key_of(rows, row)[:-2]
        first = int(rows.rollouts.response_mask[row].float().argmax())
        for output in range(count):
            stored = queue.rows[PARTITION, f"{session}_{output}"]
            wanted = credit.advantages[row, first] * stored["response_mask"]
            assert torch.allclose(found[f"{session}_{output}"], wanted, atol=1e-5)


REJECTION = (
    "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
    "algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0",
)


def rejected(
    queue: MemoryQueue, mode: str, options: dict[str, Any], rows: PromptedRollouts
) -> dict[str, torch.Tensor]:
    """A step whose rollout correction rejects the last output of the session of row 2, and nothing else."""
    trainer = make_trainer(queue, options, *REJECTION, f"algorithm.adv_estimator={mode}")
    batch = lay_down(queue, rows, earlier={2: 2, 6: 1})
    trainer._compute_old_log_prob(batch, {})
    last = f"{key_of(rows, 2)[:-2]}_2"
    for key in batch.keys:
        stored = queue.rows[PARTITION, key]
        shift = 3.0 if key == last else 0.0
        stored["rollout_log_probs"] = stored["old_log_probs"] - shift
    trainer._compute_advantage(batch, {})
    assert not queue.rows[PARTITION, last]["response_mask"].any()
    return {key: queue.rows[PARTITION, key]["advantages"] for key in batch.keys}


def test_a_rejected_last_output_earns_its_session_nothing_as_in_verls_grpo(queue: MemoryQueue) -> None:
    rows = bare_rows()
    ours = rejected(queue, "rredcot", {"segmenter": "none"}, rows)
    grpo = rejected(queue, "grpo", {}, rows)
    session = key_of(rows, 2)[:-2]
    assert [float(grpo[f"{session}_{output}"].abs().max()) for output in range(3)] == [0.0, 0.0, 0.0]
    for key, advantages in grpo.items():
        assert torch.allclose(ours[key], advantages, atol=1e-5), key
    segments = rejected(queue, "rredcot", NEWLINE, rows)
    assert [float(segments[f"{session}_{output}"].abs().max()) for output in range(3)] == [0.0, 0.0, 0.0]


# ---- weights


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
    for overrides in (bypass, (*separate, "actor_rollout_ref.rollout.n=4")):
        given = verl_config(*overrides)
        warn_of_pointless(given, read_settings(given))
        assert not caplog.text
    given = verl_config(*bypass, *separate)
    warn_of_pointless(given, read_settings(given))
    assert "trainer.v1.separate_async.parameter_sync_step=2" in caplog.text
    assert "Set bypass_mode=False" in caplog.text


# ---- what outlives a step


def test_the_window_is_kept_from_step_to_step(queue: MemoryQueue) -> None:
    trainer, calibrator = make_trainer(queue, NEWLINE), config().build_calibrator()
    for seed in range(3):
        rows = bare_rows(seed=seed)
        credit, _ = expected(rows, config(), calibrator)
        assert_credited(step(trainer, lay_down(queue, rows, seed=seed)), rows, credit)
    fresh, _ = expected(rows, config())
    assert not torch.allclose(fresh.advantages, credit.advantages, atol=1e-3), "as if there were no past"


@pytest.mark.parametrize("by_path", [False, True])
def test_a_resumed_run_goes_on_as_an_uninterrupted_one(queue: MemoryQueue, tmp_path: Path, by_path: bool) -> None:
    """Through verl's own saving and loading; in the way lies a folder of a later step, with another state."""
    folder = f"trainer.default_local_dir={tmp_path / 'run'}"
    trainer = make_trainer(queue, NEWLINE, folder)
    for seed in range(2):
        step(trainer, lay_down(queue, bare_rows(seed=seed), seed=seed))
    trainer._save_checkpoint()
    saved = tmp_path / "run" / "global_step_2"
    assert torch.load(saved / STATE_FILE, weights_only=True)["outcome"], "the window"
    assert not list(saved.glob("*.part"))
    rows = bare_rows(seed=2)
    wanted = step(trainer, lay_down(queue, rows))
    resume = [folder]
    if by_path:
        saved = saved.rename(tmp_path / "moved_global_step_2")
        resume = [f"trainer.default_local_dir={tmp_path / 'other'}", "trainer.resume_mode=resume_path"]
        resume.append(f"trainer.resume_from_path={saved}")
        (tmp_path / "other" / "global_step_2").mkdir(parents=True)
    resumed = make_trainer(queue, NEWLINE, *resume)
    resumed._load_checkpoint()
    assert resumed.global_steps == 2
    found = step(resumed, lay_down(queue, rows))
    assert all(torch.equal(found[key], advantages) for key, advantages in wanted.items())


def test_a_checkpoint_without_state_is_told(
    queue: MemoryQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_trainer(queue, NEWLINE).rredcot.load(str(tmp_path))
    assert f"{tmp_path}/{STATE_FILE} is missing" in caplog.text


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


# ---- Monte-Carlo values


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


# ---- reading


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
    assert float(read.rollouts.rewards[0, rows.lengths[3] - 1]) == 2.0, "on the last token of the model's own"
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
