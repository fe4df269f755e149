#!/usr/bin/env bash
# All tests. The programs are built first because the whole-system tests start them.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=./scripts/cargo.sh
$cargo build --locked --workspace --bins
$cargo test --locked --workspace --no-fail-fast
