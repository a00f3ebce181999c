# SPDX-License-Identifier: Apache-2.0
# Thin on purpose: what each target does is written in scripts/.
.PHONY: help demo test bench soak fuzz format lint check-all docs clean

help:
	@echo "make demo       set up, then two islands fine-tune a small model on this machine"
	@echo "make test       set up, then every check and test"
	@echo "make bench      the short benchmarks (BENCH=name for one of them)"
	@echo "make soak       the simulator over many more seeds than CI has time for (SEEDS=A..B)"
	@echo "make fuzz       every fuzzer, at least ten million inputs together"
	@echo "make format     format the C++ and Python sources"
	@echo "make lint       formatters, linters and the rules of STYLE.md"
	@echo "make check-all  thread sanitizer, clang, fuzzers and clang-tidy"
	@echo "make docs       write docs/reference again from the program's help"
	@echo "make clean      remove build outputs (not the caches outside this folder)"

demo:
	@scripts/demo

test:
	@scripts/test

bench:
	@scripts/bench $(BENCH)

soak:
	@scripts/setup run --quiet && .venv/bin/yeto sim --seeds $(or $(SEEDS),10001..210000)

fuzz:
	@scripts/test --stages fuzz-inputs

format:
	@scripts/setup lint --quiet && .venv/bin/python scripts/lint.py --fix

lint:
	@scripts/setup lint --quiet && .venv/bin/python scripts/lint.py

check-all:
	@scripts/test --check-all

docs:
	@scripts/setup run --quiet && .venv/bin/python scripts/reference.py --write

clean:
	rm -rf build dist bench/out .pytest_cache .mypy_cache .ruff_cache .hypothesis
