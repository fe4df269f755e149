#!/usr/bin/env bash
# slackline beside PyTorch DDP over shaped links, about an hour on a quiet machine. Needs root (network
# namespaces) and a Python with torch. Results that are there already are not measured again.
#   PYTHON=/path/to/python        an interpreter with torch; without one, ours alone are measured
#   WAN_ONLY="20mbit lossy"       runs with one of these words in their name; "seed" adds more seeds
#   WAN_OUT=folder                results (default: bench-out/wan); remove it to measure anew
#   WAN_PLOTS=docs/bench          where plots go (default: the results' folder)
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
  echo "bench-wan: network namespaces need root; run it as root" >&2
  exit 64
fi
for tool in ip tc nsenter unshare; do
  command -v "$tool" >/dev/null || {
    echo "bench-wan: $tool is missing (Debian: iproute2, util-linux)" >&2
    exit 64
  }
done
[ -d /usr/share/datasets/fashion-mnist ] || {
  echo "bench-wan: the data is missing (Debian: dataset-fashion-mnist)" >&2
  exit 64
}
out=${WAN_OUT:-$PWD/bench-out/wan}
python=${PYTHON:-python3}
skip=()
if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "bench-wan: SKIPPED the rivals: $python has no torch (PYTHON names another)"
  skip=(--skip-rivals)
fi
./scripts/cargo.sh build --locked --release --workspace --bins
echo "bench-wan: $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg), default TCP congestion control" \
  "$(cat /proc/sys/net/ipv4/tcp_congestion_control)"
wan() {
  local command=$1
  shift
  python3 bench/wan/wan.py "$command" --out "$out" "$@"
}
python3 bench/wan/wan.py check --rate 20mbit --rtt 20
status=0
wan table --python "$python" "${skip[@]}" || status=$?
wan summary --plots "${WAN_PLOTS:-$out}"
exit "$status"
