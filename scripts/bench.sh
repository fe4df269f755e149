#!/usr/bin/env bash
# Every measurement of docs/BENCHMARKS.md on this machine, one after the other: an hour on two cores.
# Prints each row with its command and writes bench-out/results.json.
#   BENCH_ONLY="transfer memory"  runs those alone
#   BENCH_PYTHON=/path/to/python  an interpreter with torch, for the comparison with PyTorch
#   SIM_SEEDS=10000               schedules of the simulator
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=./scripts/cargo.sh
out=bench-out
rows=$PWD/$out/rows.jsonl
mkdir -p "$out"
: >"$rows"
export BENCH_ROWS=$rows
skipped=0
failed=()

wanted() {
  [ -z "${BENCH_ONLY:-}" ] || [[ " $BENCH_ONLY " == *" $1 "* ]]
}

# step NAME COMMAND...: one measurement; its output is kept, its failure does not end the others.
step() {
  local name=$1
  shift
  wanted "$name" || return 0
  echo
  echo "bench: $*"
  if ! { "$@" 2>&1 | tee "$out/$name.txt"; }; then
    failed+=("$name")
  fi
}

# row WHAT GOAL REACHED COMMAND MET: a result of a program that writes no rows itself. No text needs
# more escaping than its quotes; MET is true, false or null.
row() {
  printf '{"what":"%s","goal":"%s","reached":"%s","command":"%s","met":%s}\n' "${@//\"/\\\"}" >>"$rows"
}

# at_least NUMBER GOAL: true or false, or null without a number.
at_least() {
  awk -v got="$1" -v goal="$2" 'BEGIN { print got == "" ? "null" : got + 0 >= goal + 0 ? "true" : "false" }'
}

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
echo "bench: $(nproc) cores, $cpu," \
  "load $(cut -d' ' -f1-3 /proc/loadavg), $(rustc --version 2>/dev/null || echo 'rustc unknown')"
$cargo build --locked --release --workspace --bins

step bsp $cargo bench -q --locked -p tests --bench bsp
step staleness $cargo bench -q --locked -p tests --bench staleness
step transfer $cargo bench -q --locked -p tests --bench transfer
step small_push $cargo bench -q --locked -p tests --bench small_push
step link $cargo bench -q --locked -p tests --bench link
step memory $cargo bench -q --locked -p tests --bench memory

kernels="cargo bench -p slackline-common --bench kernels"
step kernels $cargo bench -q --locked -p slackline-common --bench kernels
if wanted kernels && [ -s "$out/kernels.txt" ]; then
  for name in adam momentum; do
    reached=$(sed -nE "s/^$name +([0-9.]+) +([0-9.]+) +([0-9.]+) ([0-9.]+) of triad/\2 GB\/s, \4 of triad (medians)/p" \
      "$out/kernels.txt")
    ratio=$(sed -nE 's/.* ([0-9.]+) of triad.*/\1/p' <<<"$reached")
    row "optimizer apply, $name, one core" ">= 0.7 x triad" "${reached:-not measured}" "$kernels" \
      "$(at_least "$ratio" 0.7)"
  done
fi

sim="SIM_SEEDS=${SIM_SEEDS:-10000} cargo test --release -p tests --test sim many_seeds"
if wanted sim; then
  SIM_SEEDS=${SIM_SEEDS:-10000} step sim $cargo test -q --locked --release -p tests --test sim \
    many_seeds -- --nocapture
  reached=$(sed -n '/^test result/p' "$out/sim.txt" | tail -1)
  met=false
  [[ $reached == "test result: ok"* ]] && met=true
  row "simulator, ${SIM_SEEDS:-10000} seeded schedules" "no violation, no stuck state" \
    "${reached:-not measured}" "$sim" "$met"
fi

python=${BENCH_PYTHON:-python3}
engine="BENCH_PYTHON=... make bench, or tests/oracles/bench_engine.py"
if ! wanted engine; then
  :
elif "$python" -c 'import torch' 2>/dev/null; then
  export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
  step engine "$python" tests/oracles/bench_engine.py --python "$python"
  for goal in mlp:1.1 lenet:1.5 resnet20:1; do
    reached=$(sed -n "s/^${goal%:*}: //p" "$out/engine.txt")
    ratio=$(sed -nE 's/.*ratio of medians ([0-9.]+).*/\1/p' <<<"$reached")
    row "gradient step, ${goal%:*}, batch 64, one thread" ">= ${goal#*:}x PyTorch" \
      "${reached:-not measured}" "$engine" "$(at_least "$ratio" "${goal#*:}")"
  done
else
  skipped=$((skipped + 3))
  echo "bench: SKIPPED 3: $python has no torch, so nothing to compare the gradient step with" \
    "(BENCH_PYTHON names another)"
  step engine $cargo bench -q --locked -p slackline-worker --bench engine
fi

step fashion $cargo bench -q --locked -p tests --bench fashion

{
  printf '{\n"date": "%s",\n"machine": "%s cores, %s",\n"load_at_the_end": "%s",\n' "$(date -I)" \
    "$(nproc)" "$cpu" "$(cut -d' ' -f1-3 /proc/loadavg)"
  printf '"skipped": %s,\n"failed": "%s",\n"rows": [\n%s\n]\n}\n' "$skipped" "${failed[*]}" \
    "$(paste -sd, "$rows" | sed 's/},{/},\n{/g')"
} >"$out/results.json"

echo
echo "bench: $(wc -l <"$rows") rows in $out/results.json, $(grep -c '"met":false' "$rows" || true)" \
  "goals missed, $skipped skipped, ${#failed[@]} programs failed ${failed[*]}"
grep '"met":false' "$rows" | sed -E 's/.*"what":"([^"]*)".*/bench: missed: \1/' || true
[ "${#failed[@]}" -eq 0 ]
