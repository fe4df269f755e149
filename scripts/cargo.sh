#!/usr/bin/env bash
# cargo, also right after setup.sh installed it and this shell's PATH does not know it yet.
set -euo pipefail
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
cd "$(dirname "$0")/.."
exec cargo "$@"
