#!/usr/bin/env bash
# Installs what building slackline needs and this machine lacks. Says what it does; does nothing twice.
set -euo pipefail

rust_minor_min=95 # the workspace's rust-version is 1.95

need_packages=()
command -v cc >/dev/null 2>&1 && command -v c++ >/dev/null 2>&1 || need_packages+=(build-essential)
command -v pkg-config >/dev/null 2>&1 || need_packages+=(pkg-config)
command -v curl >/dev/null 2>&1 || need_packages+=(curl ca-certificates)
pkg-config --exists openblas 2>/dev/null || need_packages+=(libopenblas-dev)

if [ "${#need_packages[@]}" -gt 0 ]; then
  command -v apt-get >/dev/null 2>&1 || {
    echo "setup: this machine has no apt-get; install these by hand: ${need_packages[*]}" >&2
    exit 64
  }
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
      echo "setup: run as root, or install these by hand: ${need_packages[*]}" >&2
      exit 64
    }
    as_root=(sudo)
  fi
  echo "setup: installing ${need_packages[*]}"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
    "${need_packages[@]}" >/dev/null
fi

export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

# The minor version of cargo, 0 when there is none.
cargo_minor() {
  { cargo --version 2>/dev/null || echo 'cargo 1.0'; } | sed -E 's/^cargo 1\.([0-9]+).*/\1/'
}

if [ "$(cargo_minor)" -lt "$rust_minor_min" ]; then
  if command -v rustup >/dev/null 2>&1; then
    echo "setup: cargo 1.$(cargo_minor) is older than 1.$rust_minor_min; updating"
    rustup update stable
  else
    echo "setup: installing Rust by rustup"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
      sh -s -- -y --profile minimal -c clippy -c rustfmt --default-toolchain stable
    hash -r
  fi
fi
if command -v rustup >/dev/null 2>&1; then
  cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
  cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
fi
