#!/usr/bin/env bash
# Everything that needs a GPU, within 8 minutes on one H200-class GPU, without internet:
#   scripts/gpu_check.sh            run it; results on stdout and in $OUT (default ./gpu-results)
#   scripts/gpu_check.sh --dry-run  say what would run, and which wheels are missing
# PYTHON names the interpreter (default: python).
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
OUT=${OUT:-gpu-results}
DRY=0
[ "${1:-}" = "--dry-run" ] && DRY=1

step() { # seconds, name, command...
  local seconds=$1 name=$2
  shift 2
  echo "== $name (at most $seconds s): $*"
  [ "$DRY" = 1 ] && return 0
  timeout --kill-after=5 "$seconds" "$@" 2>&1 | tee "$OUT/$name.txt"
  local status=${PIPESTATUS[0]}
  [ "$status" = 124 ] && echo "== $name did not finish within $seconds s"
  [ "$status" = 0 ] || FAILED="$FAILED $name"
}

FAILED=""
"$PYTHON" -m tests.gpu.wheels
WHEELS=$?
GPU=$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else "")' 2>/dev/null)
echo "GPU:     ${GPU:-none that torch can use}"
if [ "$DRY" = 0 ]; then
  [ "$WHEELS" = 0 ] || exit 2
  [ -n "$GPU" ] || { echo "No GPU here; scripts/gpu_check.sh --dry-run shows what would run."; exit 2; }
  mkdir -p "$OUT"
fi
export CALLGATE_AUTOTUNE=0 # results do not depend on block sizes; compiling one candidate each saves minutes
step 140 kernels "$PYTHON" -m pytest tests/gpu/test_kernels.py -v --durations=5 --timeout=120
step 120 engine "$PYTHON" -m pytest tests/gpu/test_engine.py -v --durations=5 --timeout=110
unset CALLGATE_AUTOTUNE
step 215 figures "$PYTHON" -m benchmarks.gpu --json "$OUT/figures.json"
if [ "$DRY" = 1 ]; then
  echo "Dry run: nothing was started. In all at most 475 s."
  exit 0
fi
if [ -n "$FAILED" ]; then
  echo "FAILED:$FAILED"
  exit 1
fi
echo "All GPU checks passed."
