#!/usr/bin/env bash
# Everything a machine can judge without running the product. Never edits a file.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=./scripts/cargo.sh

echo "check: format"
$cargo fmt --all --check

echo "check: lints"
$cargo clippy --locked --workspace --all-targets -- -D warnings

echo "check: docs"
RUSTDOCFLAGS="-D warnings" $cargo doc --locked --workspace --no-deps --document-private-items --quiet

echo "check: purity (the common crate without features knows no runtime)"
impure=$($cargo tree --locked -p slackline-common --no-default-features -e normal --prefix none |
  grep -E '^(tokio|quinn|quinn-proto|quinn-udp|mio|socket2|rustls) ' || true)
if [ -n "$impure" ]; then
  echo "check: slackline-common without features depends on:" >&2
  echo "$impure" >&2
  exit 1
fi

if command -v cargo-deny >/dev/null 2>&1; then
  echo "check: licences, bans, sources"
  $cargo deny --log-level error check licenses bans sources
else
  echo "check: SKIPPED 1: licences, bans and sources (cargo install cargo-deny)"
fi
