# Bowline. `make help` lists everything.
#
# What is built lives outside the tree, so that a fresh clone starts where the last one stopped.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/bowline
export CARGO_TARGET_DIR ?= $(CACHE)/target
export CARGO_TERM_COLOR ?= auto

# What holds today must hold tomorrow: the random cases of `make test` are the same every time, those of `make crash` are not.
SEED ?= 1

.DEFAULT_GOAL := help

.PHONY: help
help: ## Lists every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Installs what is missing on a Debian machine, and says what
	@./setup.sh

.PHONY: run
run: ## Builds Bowline, starts it in a scratch directory and shows what to try
	@./setup.sh run
	@./run.sh

BUILD_TOOLS := for name in sanity kubernetes provisioner resizer snapshotter helm; do lab/tools.sh $$name >/dev/null || exit 1; done

.PHONY: tools
tools: setup ## Builds the programs of others that the labs run (once, some minutes)
	@$(BUILD_TOOLS)

# The lints come with the build: clippy's driver is a compiler too, and a second build only to look would take as long as the first. The words are those that
# `cargo clippy -- -D warnings` hands to it.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__

.PHONY: test
test: setup ## Everything that must hold: format, lints, crate arrows, tests, model, docs
	cargo fmt --all --check
	@rm -f "$(CACHE)/summary"
	@# Tests know where their tree is from when they were built; what was built in another tree, which may be gone, is built again.
	@if [ "$$(cat "$(CACHE)/tree" 2>/dev/null)" != "$(CURDIR)" ]; then \
		rm -rf "$(CARGO_TARGET_DIR)"/debug/.fingerprint/bowline* "$(CARGO_TARGET_DIR)"/debug/.fingerprint/xtask*; \
		mkdir -p "$(CACHE)" && echo "$(CURDIR)" >"$(CACHE)/tree"; fi
	@# Beside each other: on a fresh machine both take minutes, and neither keeps two processors busy all along.
	@{ $(BUILD_TOOLS); } & tools=$$!; \
	$(LINTED) cargo test --workspace --all-features --locked --no-run --message-format=json-render-diagnostics >"$(CACHE)/suites" || { wait $$tools; exit 1; }; \
	wait $$tools
	@# Where a check failed says its message; what somebody would look at next shall not be buried under a backtrace.
	@$(LINTED) RUST_BACKTRACE=0 PROPTEST_RNG_SEED=$(SEED) BOWLINE_SUMMARY="$(CACHE)/summary" "$(CARGO_TARGET_DIR)/debug/xtask" suites "$(CACHE)/logs" <"$(CACHE)/suites"
	@echo && cat "$(CACHE)/summary"

.PHONY: model
model: setup ## The model checker with larger bounds (some ten minutes)
	BOWLINE_MODEL=deep cargo test -p bowline-engine --test model --locked

.PHONY: crash
crash: setup ## More kills, more seeds, more cases than `make test` has time for
	BOWLINE_CRASH_ROUNDS=500 cargo test -p bowline-store --test crash --locked -- --show-output
	BOWLINE_SOAK_SECONDS=1200 cargo test -p bowline --test e2e --all-features --locked soak -- --show-output
	BOWLINE_SEEDS=20000 cargo test -p bowline-engine --test engine --locked random -- --show-output
	PROPTEST_CASES=20000 cargo test -p bowline-core --test properties --locked

.PHONY: storm
storm: tools ## 200 pods come and go while leaders are killed and the API server is away: make storm SEED=7
	BOWLINE_STORM_PODS=$(or $(PODS),200) BOWLINE_SEED=$(SEED) \
		cargo test -p bowline --test cluster --all-features --locked storm -- --show-output

.PHONY: replay
replay: setup ## One random schedule again: make replay SEED=7
	BOWLINE_SEED=$(SEED) cargo test -p bowline-engine --test engine --locked random -- --show-output

.PHONY: fuzz
fuzz: setup ## The fuzz targets for much longer: make fuzz RUNS=100000000
	fuzz/run.sh $(or $(RUNS),5000000) release

.PHONY: bench
bench: setup ## What things cost, as ratios: prints the table of docs/benchmarks.md
	cargo build --release --locked -p bowline
	cargo run --release --locked -p xtask -- bench

.PHONY: image
image: setup ## The container image, as an archive: make image FLAGS=--release
	cargo run --locked -p xtask -- image $(FLAGS)

.PHONY: lab-up
lab-up: tools ## A cluster of two nodes on this machine, with Bowline in it, in the background
	@cargo run --locked -p xtask -- lab up $(FLAGS)

.PHONY: lab-down
lab-down: ## Ends that cluster and removes everything of it
	@cargo run --locked -p xtask -- lab down

.PHONY: lab-status
lab-status: ## Whether that cluster runs, and what to try
	@cargo run --locked -p xtask -- lab status

.PHONY: lab-vm
lab-vm: setup ## A target and two nodes with kernels of their own and Bowline in them, until Ctrl-C: make lab-vm FLAGS=--kernel=13
	@cargo build --locked -p bowline
	@cargo run --locked -p xtask -- vm up $(FLAGS) "$(CARGO_TARGET_DIR)/debug/bowline"

.PHONY: test-vm
test-vm: setup ## Everything that needs virtual machines; `make test` has time for some of it
	BOWLINE_VM=all cargo test --workspace --all-features --locked --test vm -- --include-ignored --show-output

.PHONY: audit
audit: setup ## Licences, sources, duplicate versions and, where its database can be had, advisories
	@./audit.sh

.PHONY: clean
clean: ## Removes everything that was built
	rm -rf "$(CARGO_TARGET_DIR)"
