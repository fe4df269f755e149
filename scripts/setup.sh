#!/usr/bin/env bash
# Installs what building slackline needs and this machine lacks. Says what it does; does nothing twice.
set -euo pipefail

rust_minor_min=95 # the workspace's rust-version is 1.95

need_packages=()
command -v cc >/dev/null 2>&1 || need_packages+=(build-essential)
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
if ! command -v cargo >/dev/null 2>&1; then
  echo "setup: installing Rust by rustup"
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
    sh -s -- -y --profile minimal -c clippy -c rustfmt --default-toolchain stable
fi
minor=$(cargo --version | sed -E 's/^cargo 1\.([0-9]+).*/\1/')
if [ "$minor" -lt "$rust_minor_min" ]; then
  echo "setup: cargo 1.$minor is older than 1.$rust_minor_min; updating"
  rustup update stable
fi
