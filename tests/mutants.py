"""Does the suite catch bugs? Plants each of a list into a copy of the package and runs the tests that should notice.

make mutants        # closes with 'N of N planted bugs caught'
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIME_LIMIT_SECONDS = 1800
AT_ONCE = 2


@dataclass(frozen=True)
class Mutant:
    """A bug: in ``file`` the text ``right`` becomes ``wrong``; ``tests`` are what should notice: files under ``tests``, or
    single tests of them (``contract/test_runner.py::test_x``)."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


def steps(*names: str) -> tuple[str, ...]:
    """Tests of whole steps without Ray."""
    return tuple(f"contract/{_file_of(name)}::test_{name}" for name in names)


def _file_of(test: str) -> str:
    files = sorted(Path(__file__).parent.glob("contract/test_runner*.py"))
    return next(path.name for path in files if f"def test_{test}(" in path.read_text(encoding="utf-8"))


CREDIT, VALUES, CUTS = "unit/test_redistribution.py", "unit/test_values.py", "unit/test_segmenters.py"
FITS, WINDOW = "unit/test_calibration.py", "unit/test_window.py"
TURNS, TOLD = "unit/test_turn_rewards.py", "unit/test_process_rewards.py"
LATER = "unit/test_later_segments.py"
LUCK = "unit/test_luck_weight.py"
ESTIMATORS, REMEMBERED, CONTINUED = (
    "unit/test_estimators.py",
    "unit/test_remembered.py",
    "unit/test_continuations.py",
)
REPLAY = "contract/test_replay.py::test_"
FIELDS, OPTIONS, NAMES = "contract/test_engine.py", "contract/test_verl_options.py", "contract/test_names.py"
EVERY_ROW = steps("a_step_gives_every_row_the_credit_of_its_own_tokens")
SESSIONS = steps("outputs_with_rewritten_contexts_have_the_credit_of_one_trace")
OUTPUTS = "contract/test_sessions.py::test_"
REJECTED = steps("a_rejected_last_output_earns_its_session_nothing_as_in_verls_grpo")
CRITIC = steps("a_critics_values_are_read_where_they_belong")
RESUMED = steps("a_resumed_run_goes_on_as_an_uninterrupted_one")
AS_ROWS = steps("probes_as_rows_have_the_temperature_of_the_rollout_and_fill_the_micro_batches")
SILENT = steps("an_engine_that_does_not_answer_has_probes_run_as_rows_from_the_same_step_on")
CONTINUATIONS = steps("continuations_are_scored_with_their_prefix_and_found_again_by_key")
READ = steps("what_is_read_of_a_row")
VERL = "integrations/verl/"
WHY = "unit/test_report_why.py"
MUTANTS = (
    Mutant("the sign of a change of value", "credit/redistribution.py", "following - values", "values - following", (CREDIT,)),
    Mutant("the outcome one segment early", "credit/redistribution.py", "[:, None] - 1\n", "[:, None] - 2\n", (CREDIT,)),
    Mutant("masked tokens get credit", "credit/redistribution.py", "pad(per_segment, (1, 0))", "pad(per_segment, (1, 0), value=0.5)", (CREDIT,)),
    Mutant("groups by position", "groups.py", "order.setdefault(gid, len(order)) for gid in group_ids", "i // 2 for i, _ in enumerate(group_ids)", (CREDIT, "unit/test_groups.py")),
    Mutant("importance weight applied twice", "values/answer_probability.py", "(log_pi.exp() * weight)", "((2 * log_pi).exp() * weight)", (VALUES,)),
    Mutant("own reward left in the proposals", "values/proposals.py", "if r != row or not leave_one_out", "if True", (VALUES,)),
    Mutant("own reward left in the prior", "state_values.py", "stats.others_mean if config.leave_one_out", "stats.mean if config.leave_one_out", (VALUES, CREDIT)),
    Mutant("λ forgotten", "credit/advantages.py", "+ lam * running", "+ running", (CREDIT,)),
    Mutant("calibration sees the group's own outcomes", "values/calibration.py", "torch.where(held_out, 0.0, weight[:, None])", "weight[:, None].expand_as(held_out)", (FITS,)),
    Mutant("the expected change sees the own group", "values/calibration.py", "torch.where(own[:, None] == torch.arange(len(distinct)), 0.0, known.weight.double()[:, None])", "known.weight.double()[:, None].expand(-1, len(distinct))", (LATER,)),
    Mutant("a segment's own surprise is taken for a later one", "credit/later_segments.py", "_from_here_on(surprises) - surprises", "_from_here_on(surprises)", (LATER,)),
    Mutant("a reward on the way that values count is a loss once it is paid", "credit/later_segments.py", "changes + in_values.paid", "changes", (LATER,)),
    Mutant("an opening counts where it begins, not where it is complete", "segmenters/answer_cuts.py", "in sorted(openings):", "in sorted(openings, key=lambda found: found[1]):", ("unit/test_written_later.py",)),
    Mutant("the text before the first token is the model's", "segmenters/answer_cuts.py", "not turns and trace.length > 0 and trace.columns[0] == 0", "not turns", ("unit/test_written_later.py",)),
    Mutant("sums that differ by rounding have a deviation", "credit/advantages.py", "by - EPSILON > by_rounding", "by > EPSILON", ("unit/test_odd_rewards.py",)),
    Mutant("only the sum of a row's rewards has to be small enough", "types.py", "(total.abs() > LARGEST_OUTCOME) | (rewards.abs() > LARGEST_OUTCOME).any(dim=1)", "total.abs() > LARGEST_OUTCOME", ("unit/test_odd_rewards.py",)),
    Mutant("penalties still to come are forgotten", "measured.py", "evidence, to_come = with_penalties(evidence, apart)", "evidence, to_come = with_penalties(evidence, apart)[0], torch.zeros_like(apart)", ("unit/test_penalties.py",)),
    Mutant("penalties are counted twice", "pipeline.py", "gae(deltas + measured.counted, ", "gae(deltas + earned.penalties, ", ("unit/test_penalties.py",)),
    Mutant("penalties are divided by", "scaled.py", "    if bool(owed.any()):\n        earned =", "    if False:\n        earned =", ("unit/test_penalties.py",)),
    Mutant("shapers see penalties", "credit/shaping.py", "group_stats(outcomes.score, group_ids, outcomes.finite)", "outcomes.stats", ("unit/test_penalties.py",)),
    Mutant("luck is added", "pipeline.py", "(measured.in_values - measured.in_baselines) - later", "(measured.in_values - measured.in_baselines) + later", (LATER,)),
    Mutant("checkpoints forget changes", "values/calibration.py", "state.get(own.name, missing.get(own.name, unknown)) for", 'missing.get(own.name, unknown) if own.name == "change" else state.get(own.name, missing.get(own.name, unknown)) for', (LATER,)),
    Mutant("checkpoints forget luck", "values/calibration.py", "state.get(own.name, missing.get(own.name, unknown)) for", 'missing.get(own.name, unknown) if own.name == "luck" else state.get(own.name, missing.get(own.name, unknown)) for', (LUCK,)),
    Mutant("bias averages out as variance does", "values/luck.py", "rollouts * max(0.0, bias", "max(0.0, bias", (LUCK,)),
    Mutant("states of a rollout tell apart", "values/luck.py", "- bias**2) / size)", "- bias**2) / len(luck))", (LUCK,)),
    Mutant("luck is foreseen whatever outcomes allow", "values/luck.py", ".clamp(-span, span)", "", (LUCK,)),
    Mutant("a feature looks one token ahead", "values/prefix_numbers.py", "return padded.gather(1, before).float()", "return padded.gather(1, (before + 1).clamp(max=x.shape[1])).float()", (FITS,)),
    Mutant("characters are split", "segmenters/trace.py", "(starts >= ends) & over", "over", (CUTS + "::test_a_multi_byte_character_is_never_split",)),
    Mutant("the answer is cut", "segmenters/assemble.py", "answers.outside(legal(trace, proposed))", "legal(trace, proposed)", (CUTS + "::test_the_last_segment_begins_where_the_answer_is_opened",)),
    Mutant("a boundary knows the token after it", "segmenters/trace.py", "np.concatenate([[0.0], -self.log_probs[:-1].astype(np.float64)])", "-self.log_probs.astype(np.float64)", (CUTS, "unit/test_segmenters_all.py")),
    Mutant("the own return in the token's baseline", "baselines/token.py", "return numbers.sum(0) - numbers", "return numbers.sum(0).expand_as(numbers)", ("unit/test_token_baseline.py",)),
    Mutant("siblings that have ended count as alive", "baselines/token.py", "counts = alive & valid[:, None]", "counts = (alive | True) & valid[:, None]", ("unit/test_token_baseline.py",)),
    Mutant("a token without living siblings has no baseline", "baselines/token.py", "return torch.where(others > 0, mean, of_ended)", "return torch.where(others > 0, mean, 0.0)", ("unit/test_token_baseline.py",)),
    Mutant("the own trace in the mean of least variance", "baselines/weights.py", "mean = per_group(rewarded) - rewarded +", "mean = per_group(rewarded) +", ("unit/test_least_variance.py", "unit/test_baselines.py")),
    Mutant("padding weighs in the trace's baseline", "baselines/trace.py", "torch.where(exists, evidence.state_weight() + self.floor, 0.0).sum(1)", "(evidence.state_weight() + self.floor).sum(1)", ("unit/test_baselines.py", "unit/test_least_variance.py")),
    Mutant("the floor of the options is not taken", "baselines/least_variance.py", "evidence.state_weight() + self.floor", "evidence.state_weight() + FLOOR", ("unit/test_least_variance.py",)),
    Mutant("other groups join by no option", "baselines/trace.py", "outcomes.finite, self.pseudo_rollouts", "outcomes.finite", ("unit/test_least_variance.py",)),
    Mutant("temperature is not squared away", "probes/squares.py", "block.sum(dim=1).square()", "block.sum(dim=1)", ("unit/test_squares.py",)),
    Mutant("the sum is lost in shaping", "credit/shaping.py", "shaped.scatter_add(1, last, missing[:, None])", "shaped", ("unit/test_shapers.py",)),
    Mutant("a NaN reward counts in its group", "groups.py", "weight = valid.double()", "weight = torch.ones_like(outcomes).double()", (CREDIT,)),
    Mutant("the own outcome among the siblings'", "values/siblings.py", "keys)[key] - (weight * outcomes)[row]", "keys)[key]", ("unit/test_siblings.py",)),
    Mutant("siblings of other prompts", "values/siblings.py", "mixed(group.astype(np.uint64))", "np.uint64(0)", ("unit/test_siblings.py",)),
    Mutant("a segment counts before it is finished", "values/siblings.py", "(1, 0)))[:, :, :-1]", "(0, 1)))[:, :, 1:]", ("unit/test_siblings.py",)),
    Mutant("a call counts before it has ended", "values/actions.py", "calls = [(begin + at, call)", "calls = [(begin, call)", ("unit/test_same_state.py",)),
    Mutant("the environment's last number everywhere", "values/base.py", "torch.where(there, columns, -1).cummax(dim=1).values", "torch.where(there, columns, -1).amax(dim=1, keepdim=True).expand(numbers.shape)", ("unit/test_environment_values.py",)),
    Mutant("an answer inside a call", "text/dialogue.py", "if turns is not None and waits_for_tool(answer)", "if False", ("unit/test_dialogue.py",)),
    Mutant("a thought of an earlier turn", "text/dialogue.py", "_, _, said = text.rpartition(self.opening)", "said = text", ("unit/test_dialogue.py",)),
    Mutant("the span of rewards knows the own outcome", "values/calibration.py", "for known in (past, torch.cat([past, outcomes.double()])):", "for known in (outcomes.double(),):", ("unit/test_tabular_calibrated.py",)),
    Mutant("penalties are redistributed", "earned.py", "total if rollouts.penalties is None else torch.where(finite, rollouts.scores, 0.0)", "total", (ESTIMATORS,)),
    Mutant("a boundary reads the value after its token", "types.py", "(0, 1)).gather(1, self.starts)", "(0, 2)).gather(1, self.starts + 1)", (ESTIMATORS,)),
    Mutant("other groups know the own reward as the worst one", "state_values.py", "dataclasses.replace(found, lowest=lowest)", "found", ("unit/test_own_reward.py",)),
    Mutant("other groups are probed by the own reward", "integrations/verl/runner.py", "self._needs_rows(), self.calibrator.lowest", "self._needs_rows(), None", ("contract/test_own_reward.py",)),
    Mutant("the own reward is the worst one", "values/proposals.py", "known = lowest_of_others(outcomes) if", "known = outcomes if", ("unit/test_tabular.py", ESTIMATORS)),
    Mutant("a calibrated fit where nothing is to calibrate", "state_values.py", 'config.calibrate != "none" and calibrates(estimator)', 'config.calibrate != "none"', (ESTIMATORS,)),
    Mutant("λ between turns forgotten", "credit/hierarchy.py", "lam_coarse * ahead[:, 1:]", "ahead[:, 1:]", ("unit/test_hierarchy.py", "unit/test_nested.py")),
    Mutant("credit leaks into the next turn", "credit/hierarchy.py", "parent[:, k] == before", "parent[:, k] >= -1", ("unit/test_hierarchy.py", "unit/test_nested.py")),
    Mutant("attention after the answer counts", "values/attribution.py", "(ids < segments.num_segments[:, None] - 1)", "(ids < segments.num_segments[:, None])", ("unit/test_attribution_shares.py",)),
    Mutant("the calibrator never remembers", "values/calibration.py", "self._past.append(states if counted is None else states.some(counted))", "pass", (REMEMBERED,)),
    Mutant("the window counts arrivals", "values/window.py", "torch.where(step.version.isfinite(), newest - step.version, float(since))", "torch.full_like(step.version, float(since))", (WINDOW,)),
    Mutant("checkpoints forget versions", "values/calibration.py", "state.get(own.name, missing.get(own.name, unknown)) for", 'missing.get(own.name, unknown) if own.name == "version" else state.get(own.name, missing.get(own.name, unknown)) for', (WINDOW,)),
    Mutant("a trace is as old as its first token", VERL + "sessions.py", 'float(tags[row]["max_global_steps"])', 'float(tags[row]["min_global_steps"])', ("contract/test_async.py",)),
    Mutant("long traces dominate the fit", "values/fit.py", "(at / at.sum(dim=1, keepdim=True).clamp(min=1))[at]", "at[at]", (REMEMBERED,)),
    Mutant("the divisor looks at values", "scaled.py", "scale_advantages(measured, baselines, earned, real, _scale(config))\n    per_segment", "scale_advantages(measured, evidence.values, earned, real, _scale(config))\n    per_segment", (REMEMBERED,)),
    Mutant("a row without a reward widens the divisor", "scaled.py", "scale_advantages(measured, baselines, earned, real, _scale(config))\n    per_segment", "scale_advantages(measured, baselines, earned, segments.exists, _scale(config))\n    per_segment", ("unit/test_odd_rewards.py",)),
    Mutant("a change is expected that no outcome allows", "values/calibration.py", "torch.minimum(torch.maximum(found, -most), most)", "found", ("unit/test_later_segments.py",)),
    Mutant("the sample of groups follows the rows", "values/labelled_states.py", "sorted(size, key=lambda gid: (_hash(gid) >> 3, str(gid)))", "size", (REMEMBERED,)),
    Mutant("the prompt is never probed", "adapter/probe_plan.py", "first = 1 if config.prior_from_group else 0", "first = 1", (REMEMBERED,)),
    Mutant("probes follow the batch's own format", "text/encoding.py", "due = self._before or style", "due = style", ("unit/test_probe_plan.py",)),
    Mutant("a part's lowest outcomes by position", "adapter/group_work.py", "(seen, floor[index])", "(seen, floor[: len(index)])", (REMEMBERED,)),
    Mutant("weights that are given are not taken", "baselines/base.py", " if given is None else given", "", ("unit/test_state_numbers.py",)),
    Mutant("numbers that are given are not taken", "values/fit.py", " if self.prefixes is None else self.prefixes", "", ("unit/test_state_numbers.py",)),
    # the glue
    Mutant("rewards by position", VERL + "credit.py", "rewards[state.roles.active]", "rewards[: len(state.roles.active)]", EVERY_ROW),
    Mutant("a rollout is its own sibling", "credit/turn_rewards.py", "own = valid[:, None].long()", "own = 0 * valid[:, None].long()", (TURNS,)),
    Mutant("a group of one has nothing to be measured from", "credit/turn_rewards.py", "(total + elsewhere)", "total", (TURNS,)),
    Mutant("rewards on the way count for later turns", "credit/turn_rewards.py", "paid.double().flip(1).cumsum(1).flip(1)", "paid.double().flip(1).cumsum(1).flip(1)[:, :1].expand_as(paid)", (TURNS,)),
    Mutant("a sibling that has ended counts", "credit/turn_rewards.py", "(turns * S)[:, None]", "(turns.max() * S).expand_as(turns)[:, None]", (TURNS,)),
    Mutant("broken rewards on the way are thrown away", "credit/turn_rewards.py", "before_last &= torch.isfinite(rollouts.outcomes)[:, None]", "before_last &= True", (TURNS,)),
    Mutant("special tokens are characters", "text/alignment.py", "shown = ~np.isin(token_ids, self.special)", "shown = np.ones(len(token_ids), dtype=bool)", (TOLD,)),
    Mutant("every broken byte is a character of its own", "text/alignment.py", "_joined_places(text)[starts] if self.joins else starts", "starts", (TOLD,)),
    Mutant("a line's reward stands on the token after it", "adapter/process_rewards.py", 'side="left") - 1', 'side="left")', (TOLD,)),
    Mutant("what a line earned is paid at the end again", "adapter/process_rewards.py", "own[mask[row].nonzero()[-1]] -= paid.sum()", "pass", (TOLD,)),
    Mutant("verl's rewards keep them at the end", "integrations/verl/credit.py", "active = active + state.summary.moved", "pass", ("contract/test_process_rewards.py",)),
    Mutant("a continuation is worth the lines before it", "integrations/verl/continuations.py", "- sum(reward for _, reward in parse(said)[0])", "", (CONTINUED,)),
    Mutant("the KL penalty is redistributed", VERL + "credit.py", "penalties_of(active - before.rewards) if kl_in_reward else None", "None", steps("a_kl_penalty_stays_on_its_tokens")),
    Mutant("the actor's signals are dropped", VERL + "credit.py", "state.signals.get(name) for name", "None for name", steps("signals_are_the_actors_and_keep_their_names")),
    Mutant("a fresh calibrator for every step", VERL + "runner.py", "self.settings, self.calibrator, kl_in_reward", "self.settings, self.settings.build_calibrator(), kl_in_reward", steps("the_window_is_kept_from_step_to_step")),
    Mutant("an empty calibrator is saved", VERL + "runner.py", "torch.save(state_of(self.calibrator,", "torch.save(state_of(self.settings.build_calibrator(),", RESUMED),
    Mutant("what is loaded is not used", VERL + "runner.py", "take_up(torch.load(path, weights_only=True), self.calibrator, self.credit_workers.encoder)", "torch.load(path, weights_only=True)", RESUMED),
    Mutant("a resumed run forgets how its model answers", "adapter/state.py", "    if STYLE in state:", "    if False:", ("unit/test_resumed_style.py", "contract/test_resumed_style.py")),
    Mutant("later passes run the probes again", VERL + "runner.py", "(transfer_fields.BACKEND, transfer_fields.ATTRIBUTION, transfer_fields.SQUARES)", "(transfer_fields.ATTRIBUTION, transfer_fields.SQUARES)", steps("the_engine_is_asked_once_and_not_again_in_later_passes")),
    Mutant("later passes attribute again", VERL + "runner.py", "(transfer_fields.BACKEND, transfer_fields.ATTRIBUTION, transfer_fields.SQUARES)", "(transfer_fields.BACKEND, transfer_fields.SQUARES)", steps("attribution_is_asked_of_every_row_and_read_by_its_own")),
    Mutant("the step before is credited again", VERL + "runner.py", "        self.state = None\n        kl_in_reward", "        kl_in_reward", steps("advantages_without_a_log_prob_pass_are_refused")),
    Mutant("the critic learns advantages", VERL + "runner.py", "onto_rows(returns,", "onto_rows(credit.advantages,", CRITIC),
    Mutant("the state of another step is saved", VERL + "checkpoints.py", 'f"global_step_{trainer.global_steps}"))', 'f"global_step_{trainer.global_steps - 1}"))', RESUMED),
    Mutant("a path to resume from is ignored", VERL + "checkpoints.py", 'config.resume_mode == "resume_path"', "False", RESUMED),
    Mutant("probes after the weights are restored", VERL + "trainer.py", "bases = (RRedCoTTrainerMixin, trainer, RRedCoTLogProbPass)", "bases = (RRedCoTTrainerMixin, RRedCoTLogProbPass, trainer)", steps("probes_and_old_log_probs_are_those_of_the_same_weights")),
    Mutant("continuations never run", VERL + "trainer.py", "self.rredcot.on_sampled()  # before", "pass  # before", CONTINUATIONS),
    Mutant("answers of other rows", VERL + "exchange.py", "for row in own]) for own", "for row in range(len(own))]) for own", EVERY_ROW),
    Mutant("seconds for a log-prob", VERL + "exchange.py", "answers[row][1:]", "answers[row][:-1]", EVERY_ROW),
    Mutant("nothing is laid down for padding", VERL + "exchange.py", "if padding:  #", "if False:  #", EVERY_ROW),
    Mutant("probes as rows at temperature 1", VERL + "exchange.py", "temperature=rollout.temperature", "temperature=1.0", AS_ROWS),
    Mutant("micro-batches of probes are not filled", VERL + "exchange.py", "(rollout.log_prob_micro_batch_size_per_gpu or 1)", "1", AS_ROWS),
    Mutant("an engine that does not answer is asked again", VERL + "exchange.py", 'self.backend = "batched"', '_ = "batched"', SILENT),
    Mutant("probes as rows are asked for at temperature 1", VERL + "batched.py", '"temperature": temperature,', '"temperature": 1.0,', AS_ROWS),
    Mutant("a long probe has no room", VERL + "batched.py", "max(max_tokens_per_gpu, *(len(ids) for ids, _ in rows))", "max_tokens_per_gpu", steps("a_probe_longer_than_the_token_budget_has_room")),
    Mutant("rows with images are probed blindly", VERL + "media.py", "and source.has_media()", "and False", ("contract/test_media.py",)),
    Mutant("experts are balanced while probes run", "probes/log_probs.py", "{\"output_router_logits\": False}", "{}", ("unit/test_probes.py",)),
    Mutant("log-probs of a probe one place late", VERL + "batched.py", "values[-1 - counted : -1]", "values[-counted:]", EVERY_ROW),
    Mutant("the bridge counts", VERL + "batched.py", "len(ids) - skip)", "len(ids))", EVERY_ROW),
    Mutant("rows of probes stay behind", VERL + "batched.py", "tq.kv_clear(keys=keys, partition_id=PARTITION)", "pass", AS_ROWS),
    Mutant("outputs of a session compared as text", VERL + "sessions.py", "int(index) if known else 0", 'index if known else "0"', SESSIONS),
    Mutant("rewards of all outputs count", VERL + "session_plane.py", "self.starts(session)[-1]", "self.starts(session)[0]", SESSIONS),
    Mutant("padding takes part", VERL + "sessions.py", 'tag.get("is_padding", False)', "False", EVERY_ROW),
    Mutant("a session that lost its end earns", VERL + "tokens.py", "torch.where(kept[:, None], rows, instead)", "rows", REJECTED),
    Mutant("outputs stand without a column between", VERL + "session_plane.py", "accumulate((length + 1 for", "accumulate((length for", (FIELDS + "::test_every_output_has_its_own_columns_back_and_padding_nothing",)),
    Mutant("probes after the first prompt of a session", "adapter/probe_plan.py", "len(outputs[i].prompt) + column", "len(outputs[0].prompt) + column", ("unit/test_output_cuts.py",)),
    Mutant("a prefix reaches over outputs", "adapter/probe_plan.py", "_prefixes(rows, row, [outputs[i].start for i in own]", "_prefixes(rows, row, [0 for i in own]", ("unit/test_output_cuts.py",)),
    Mutant("segments reach over outputs", "adapter/output_cuts.py", "& (_before(ids, ids) == ids)", "& False", SESSIONS),
    Mutant("GRPO is cut at outputs", "adapter/output_cuts.py", "or is_grpo(config)", "or False", (OUTPUTS + "a_session_whose_last_row_was_aborted_earns_nothing_and_counts_for_its_group",)),
    Mutant("penalties of earlier outputs are lost", VERL + "credit.py", "penalties_of(now - fit_width(state.copies, now))", "torch.zeros_like(now)", (OUTPUTS + "a_penalty_on_any_row_of_a_session_stays_on_its_tokens",)),
    Mutant("a reward on the first token of its segment", VERL + "tokens.py", 'reduce="amax"', 'reduce="amin"', (NAMES + "::test_rewards_stand_on_the_last_token_of_their_segment",)),
    Mutant("rewards of tool output are lost", VERL + "batch.py", "scatter_add(1, before, stray)", "scatter_add(1, before, 0.0 * stray)", READ),
    Mutant("log-probs of the rollout engine for the actor's", VERL + "batch.py", '{"old_log_probs": "log_probs"', '{"rollout_log_probs": "log_probs"', steps("signals_are_the_actors_and_keep_their_names")),
    Mutant("squares are not read", VERL + "batch.py", ', transfer_fields.SUM_PI_SQUARED: "sum_pi_squared"}', "}", steps("squares_of_probabilities_are_asked_for_and_read_by_row")),
    Mutant("some rows are the first ones", VERL + "batch.py", "[self.keys[i] for i in index]", "self.keys[: len(index)]", READ),
    Mutant("a recorded NaN stays", VERL + "batch.py", ".float().nan_to_num(0.0, 0.0, 0.0)", ".float()", READ),
    Mutant("Monte-Carlo values by position", VERL + "monte_carlo.py", "self._values.get(name)", "list(self._values.values())[i]", CONTINUATIONS),
    Mutant("a failed continuation earns 0", VERL + "continuations.py", 'tally.failures.append(error)\n                        return float("nan")', "return 0.0", steps("a_failed_continuation_is_missing_and_not_a_value_of_0")),
    Mutant("a continuation is scored without its prefix", VERL + "continuations.py", "[*state.prefix, *output.token_ids], fields", "[*output.token_ids], fields", CONTINUATIONS),
    Mutant("all samples of a state are one", VERL + "continuations.py", "repr((seed, step, list(ids), sample))", "repr((seed, step, list(ids)))", (CONTINUED,)),
    Mutant("tool output is continued", VERL + "continuations.py", "return _is_one_turn(rows, row)", "return True", (CONTINUED,)),
    Mutant("any answer of a tool brings a state back", VERL + "replay.py", "if list(prompt_ids) != [", "if False and list(prompt_ids) != [", (REPLAY + "a_tool_that_answers_otherwise_leaves_its_states_out_and_is_named",)),
    Mutant("a continuation begins at its turn", VERL + "replay.py", "self._generate([*prompt_ids, *recorded], s", "self._generate(prompt_ids, s", (REPLAY + "the_tools_bring_every_state_back_and_its_value_is_the_mean_of_what_follows",)),
    Mutant("max_tokens for each turn", VERL + "continuations.py", "left -= len(output.token_ids)", "pass", (REPLAY + "max_tokens_is_for_all_turns_of_a_continuation",)),
    Mutant("answers start by position", VERL + "attribution.py", "zip(roles.active, answer_starts(rows, segments), strict=True)", "enumerate(answer_starts(rows, segments))", steps("attribution_is_asked_of_every_row_and_read_by_its_own")),
    Mutant("no answer is an answer at once", VERL + "transfer_fields.py", "length if start < 0 else start for", "start for", (FIELDS + "::test_answer_starts_travel_jagged_or_dense",)),
    Mutant("rewards for the critic's values", VERL + "reading.py", 'numbers(["values"]', 'numbers(["rm_scores"]', CRITIC),
    Mutant("a preset wins over explicit keys", "presets.py", "values, found = kept | dict(given), {", "values, found = dict(given) | kept, {", ("unit/test_presets.py",)),
    Mutant("near misses of our keys pass", VERL + "start.py", "    check_keys(config)", "    _ = check_keys", ("contract/test_start.py",)),
    Mutant("verl's main program starts Ray unchecked", VERL + "main_program.py", "    check_run(copy.deepcopy(config))", "    _ = check_run", ("contract/test_start.py",)),
    Mutant("Dr. GRPO's scale for GRPO's", "choices.py", '"group_std" if by_std else "none"', '"none" if by_std else "group_std"', (OPTIONS + "::test_options_by_plain_override_and_by_hydra_group",)),
    Mutant("coloured by credit, called advantage", "report/html.py", 'kind_of(segment.advantage)}" style', 'kind_of(segment.credit)}" style', (WHY,)),
    Mutant("answers of the boundary before", "adapter/trace_record.py", "found[k, s, n]", "found[k, s - 1, n]", (WHY,)),
    Mutant("values are compared with the whole reward", "report/traces.py", "[self.reward - paid for paid in", "[self.reward for paid in", ("unit/test_report_paid.py",)),
    Mutant("the bias of values with the other sign", "report/statistics.py", "[own.value - followed for own, followed in", "[followed - own.value for own, followed in", ("unit/test_report_findings.py",)),
    Mutant("a page that never stops reloading", "commands/report.py", "make(reload=None)", "make()", ("unit/test_report_compare.py",)),
    Mutant("the end of sequence stands in answers", "text/encoding.py", 'self._special.sub("\\n", text.rpartition(THINK_END)[2])', "text.rpartition(THINK_END)[2]", ("unit/test_text.py",)),
    Mutant("one response makes a model think", "text/encoding.py", "0 < self.responses <= 2 * self.thoughts", "self.thoughts > 0", ("unit/test_text.py",)),
    Mutant("penalties in the floor of values", "values/answer_probability.py", "floor_of(rollouts.scores, ", "floor_of(rollouts.outcomes, ", ("unit/test_odd_rewards.py",)),
    Mutant("penalties in the value of a prompt", "state_values.py", "if rollouts.penalties is not None:", "if False:", ("unit/test_odd_rewards.py",)),
    Mutant("a critic learns from rows without a reward", "integrations/verl/credit.py", "rollouts.response_mask & torch.isfinite(rollouts.outcomes)[:, None]", "rollouts.response_mask", ("contract/test_critic_rewards.py",)),
    Mutant("a response behind its prompt loses a space", "text/alignment.py", "np.concatenate([start, start[1:] + size])", "self.start", (TOLD,)),
)  # fmt: skip


def copy_of_package(folder: Path) -> None:
    for name in ("rredcot_plugin", "tests", "docs", "recipes"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def plant(mutant: Mutant, folder: Path) -> None:
    """Raises ``ValueError`` if the text to change is not there once."""
    path = folder / "rredcot_plugin" / mutant.file
    path.write_text(planted(mutant, path.read_text()))


def planted(mutant: Mutant, text: str) -> str:
    """The text of its file with the bug; ``ValueError`` if what it changes is not there once."""
    if text.count(mutant.right) != 1:
        raise ValueError(
            f"{mutant.name}: expected {mutant.right!r} once in {mutant.file}, got {text.count(mutant.right)}"
        )
    return text.replace(mutant.right, mutant.wrong)


def fails(tests: Iterable[str], folder: Path) -> bool:
    """Whether one of these tests fails on the package in this folder."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    done = subprocess.run(
        [*command, *(f"tests/{test}" for test in tests)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_SECONDS,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the tests did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def catches(mutant: Mutant) -> bool:
    """Whether a test fails with the bug in place."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_of_package(folder)
        plant(mutant, folder)
        found = fails(mutant.tests, folder)
    print(f"{'caught' if found else 'MISSED':7s} {time.monotonic() - begin:5.1f} s  {mutant.name}", flush=True)
    return found


def pass_without_a_bug(mutants: Iterable[Mutant]) -> bool:
    """Whether all the tests pass on a copy of the package as it is: one that fails anyway would catch everything."""
    with tempfile.TemporaryDirectory() as name:
        copy_of_package(Path(name))
        tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
        return not fails(tests, Path(name))


def main() -> int:
    begin = time.monotonic()
    if not pass_without_a_bug(MUTANTS):
        print("a test fails without any bug planted")
        return 1
    with ThreadPoolExecutor(AT_ONCE) as pool:
        caught = sum(pool.map(catches, MUTANTS))
    glue = sum(mutant.file.startswith("integrations/") for mutant in MUTANTS)
    print(f"{glue} of them in the glue; {time.monotonic() - begin:.0f} s")
    print(f"{caught} of {len(MUTANTS)} planted bugs caught")
    return 0 if caught == len(MUTANTS) else 1


if __name__ == "__main__":
    sys.exit(main())
