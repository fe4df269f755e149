#!/usr/bin/env bash
# Feeds every decoder made-up bytes: FUZZ_SECONDS each (60), two at a time, under a memory limit.
# libFuzzer steers by coverage. Its instrumentation needs stable compiler flags only, and no sanitizer:
# there is no unsafe code to watch on these roads. A failing input stays in target/fuzz/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
target=$(pwd)/${CARGO_TARGET_DIR:-target}
case "${CARGO_TARGET_DIR:-}" in /*) target=$CARGO_TARGET_DIR ;; esac
work=$target/fuzz
mkdir -p "$work"

export RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
host=$(./scripts/cargo.sh -vV | sed -n 's/^host: //p')
# With a target named, the flags stay away from build scripts.
CARGO_TARGET_DIR=$work ./scripts/cargo.sh build --locked --release --target "$host" \
  --manifest-path fuzz/Cargo.toml --quiet

run_one() {
  name=$1
  mkdir -p "$work/corpus/$name"
  if ! "$work/$host/release/$name" "$work/corpus/$name" -max_total_time="$seconds" -max_len=8192 \
    -rss_limit_mb=1024 -malloc_limit_mb=256 -timeout=10 -artifact_prefix="$work/$name-" \
    -print_final_stats=1 >"$work/$name.log" 2>&1; then
    tail -n 40 "$work/$name.log"
    echo "fuzz: $name FAILED; the input is in $work/$name-*"
    return 255
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$name.log")
  echo "fuzz: $name: $runs inputs in $seconds s"
}
export -f run_one
export work host seconds
targets=$(sed -n 's/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml | grep -v '^slackline-fuzz$')
echo "$targets" | grep -E "${FUZZ_ONLY:-.}" | xargs -P 2 -I{} bash -c 'run_one {}'
