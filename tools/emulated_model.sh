#!/usr/bin/env bash
# Whole models on other processors: converts tiny models of every kind here, digests them and makes receipts of answers here, and checks both under qemu.
#   tools/emulated_model.sh haswell            x86-64 without AVX-512, with this Python
#   tools/emulated_model.sh aarch64            Debian's Python and NumPy for arm64, and our module built for it
# VARIANTS="base yarn" takes only these of the tiny models (see tests/tiny.py). The real model takes part where `make models` has made it. Needs qemu-user; for aarch64 also apt and g++-aarch64-linux-gnu.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=.venv/bin/python
WORK=build/emulated
VARIANTS=${VARIANTS:-base bias yarn window heads63}
mkdir -p "$WORK"

prepare() {
  rm -rf "$WORK/models"
  # shellcheck disable=SC2086
  "$PYTHON" - "$WORK" $VARIANTS <<'PY'
import shutil, sys
from pathlib import Path
from exactlm import convert_to_deterministic
from tests import tiny
folder = Path(sys.argv[1])
for variant in sys.argv[2:]:
    source = tiny.write_checkpoint(folder / "source" / variant)
    for precision, kv_cache in (("fp16", "int16"), ("int8", "int16"), ("int8", "int8")):
        target = folder / "models" / f"{variant}-{precision}-{kv_cache}"
        convert_to_deterministic(source, precision, kv_cache=kv_cache).save_pretrained(target, overwrite=True, progress=False)
PY
  MODELS=("$WORK"/models/*)
  for precision in fp16 int8; do
    [ -f ".cache/models/smollm2-135m-$precision/manifest.json" ] && MODELS+=(".cache/models/smollm2-135m-$precision")
  done
  "$PYTHON" -m tests.golden.replay write "$WORK/digests.json" "${MODELS[@]}"
  local model
  for model in "${MODELS[@]}"; do
    "$PYTHON" -m tests.golden.receipts make "$WORK/$(basename "$model").jsonl" "$model"
  done
}

verify() { # the receipts of every model, by the Python and the instruction sets of the arguments
  local model isa
  for model in "${MODELS[@]}"; do
    for isa in $ISAS; do
      case "$model $isa" in *smollm2*scalar | *smollm2*reference) continue ;; esac
      "$@" -m tests.golden.receipts check "$WORK/$(basename "$model").jsonl" "$model" "$isa"
    done
  done
}

haswell() {
  local packages module
  packages=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  module=$("$PYTHON" -c 'import exactlm.kernels._native as n; print(n.__file__)')
  rm -rf "$WORK/host" && mkdir "$WORK/host" && cp -r src/exactlm "$WORK/host/exactlm" && cp "$module" "$WORK/host/exactlm/kernels/"
  export PYTHONPATH="$PWD/$WORK/host:$packages" PYTHONWARNINGS=ignore
  local emulated=(qemu-x86_64 -cpu Haswell "$(readlink -f "$PYTHON")")
  {
    "${emulated[@]}" -m tests.golden.replay check "$WORK/digests.json" "${MODELS[@]}"
    ISAS="scalar avx2" verify "${emulated[@]}"
  } 2> >(grep -v "TCG doesn't support" >&2)
}

arm64_root() { # Debian's arm64 Python and NumPy, unpacked, not installed
  ROOT="$PWD/$WORK/arm64"
  [ -f "$ROOT/complete" ] && return
  mkdir -p "$ROOT/packages"
  dpkg --add-architecture arm64
  apt-get update -qq
  local names
  names=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    python3-numpy:arm64 libpython3-dev:arm64 libstdc++6:arm64 | grep -E '^(lib|python3|zlib1g)[^ ]*:arm64$' | grep -vE 'atlas|blis|openblas' | sort -u)
  # shellcheck disable=SC2086
  (cd "$ROOT/packages" && apt-get download -qq $names 2>/dev/null)
  for package in "$ROOT"/packages/*.deb; do dpkg-deb -x "$package" "$ROOT"; done
  touch "$ROOT/complete"
}

arm64_wheels() { # what verifying receipts needs besides
  [ -d "$ROOT/wheels" ] && return
  "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 \
    --python-version "$(ls "$ROOT"/usr/bin | sed -n 's/^python\(3\.1[0-9]\)$/\1/p')" --dest "$ROOT/wheels" \
    tokenizers rfc8785
  for wheel in "$ROOT"/wheels/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$ROOT/usr/lib/python3/dist-packages"; done
}

build_arm64() {
  local nanobind version out flags
  "$PYTHON" -c 'import nanobind' 2> /dev/null || "$PYTHON" -m pip install --quiet nanobind
  nanobind=$("$PYTHON" -c 'import nanobind, pathlib; print(pathlib.Path(nanobind.__file__).parent)')
  version=$(basename "$(ls -d "$ROOT"/usr/include/python3.1? | head -n 1)")
  out="$WORK/arm64-build"
  mkdir -p "$out/exactlm"
  flags="-std=c++20 -O2 -fPIC -ffp-contract=off -fno-math-errno -fno-trapping-math -fvisibility=hidden -Inative -I$nanobind/include -I$nanobind/ext/robin_map/include -I$ROOT/usr/include/$version -I$ROOT/usr/include"
  build() { [ "$out/$1.o" -nt "$2" ] || aarch64-linux-gnu-g++ $flags "${@:3}" -c "$2" -o "$out/$1.o"; }
  build nanobind "$nanobind/src/nb_combined.cpp" -std=c++17 -DNDEBUG
  for file in bind isa pool kv_cache linear attention rows layout logit sampling; do build "$file" "native/$file.cpp" -DNDEBUG; done
  for isa in scalar neon neondotprod; do
    local march=""
    [ "$isa" = neondotprod ] && march="-march=armv8.2-a+dotprod"
    build "dot_$isa" "native/dot_$isa.cpp" $march
    build "elementwise_$isa" native/elementwise.cpp $march "-DEXACTLM_ELEMENTWISE=elementwise_$isa" "-DEXACTLM_ISA_NAME=\"$isa\""
  done
  rm -rf "$out/exactlm" && cp -r src/exactlm "$out/exactlm" && rm -f "$out"/exactlm/kernels/_native*.so
  aarch64-linux-gnu-g++ -shared "$out"/*.o -o "$out/exactlm/kernels/_native.so" -lpthread
  rm -rf "$out/tests" && cp -r tests "$out/tests"
}

aarch64() {
  arm64_root
  arm64_wheels
  build_arm64
  local python
  python=$(ls "$ROOT"/usr/bin/python3.1? | head -n 1)
  local libraries="$ROOT/usr/lib/aarch64-linux-gnu/blas:$ROOT/usr/lib/aarch64-linux-gnu/lapack"
  local emulated=(env PYTHONHOME="$ROOT/usr" PYTHONPATH="$PWD/$WORK/arm64-build:$ROOT/usr/lib/python3/dist-packages" PYTHONDONTWRITEBYTECODE=1
    LD_LIBRARY_PATH="$libraries" qemu-aarch64 -L "$ROOT" -E LD_LIBRARY_PATH="$libraries" "$python")
  "${emulated[@]}" -m tests.golden.replay check "$WORK/digests.json" "${MODELS[@]}"
  ISAS="scalar neon neondotprod" verify "${emulated[@]}"
}

prepare
for step in "$@"; do
  case "$step" in
    haswell | aarch64) echo "== $step"; "$step" ;;
    *) echo "unknown step $step: haswell or aarch64" >&2; exit 2 ;;
  esac
done
