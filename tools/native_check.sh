#!/usr/bin/env bash
# Builds and runs the native tests: on this machine, under sanitizers, and for other processors under qemu.
# usage: tools/native_check.sh [host] [symbols] [sanitize] [aarch64] [haswell] [riscv64] [s390x]   (none: all)
# Prints one line a step, "<step>: ok" or "<step>: failed: <why>"; exit status 1 if any failed. Logs are in build/native.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

OUT=build/native
ALL=(host symbols sanitize aarch64 haswell riscv64 s390x)
why=""

fail() {
  why=$1
  return 1
}

need() { # need COMMAND PACKAGE
  command -v "$1" > /dev/null || fail "$1 is missing: install the package $2"
}

log() { # log NAME COMMAND...: output into a file; the first errors go to the terminal
  local file=$OUT/$1.log
  shift
  if ! "$@" > "$file" 2>&1; then
    (grep -E 'error|Error|ERROR|\.cpp:[0-9]+' "$file" || tail -n 20 "$file") | head -n 20 >&2
    fail "see $file"
  fi
}

build() { # build NAME CMAKE_OPTIONS...
  local name=$1
  shift
  need cmake cmake && log "$name-configure" cmake -S . -B "$OUT/$name" -DEXACTLM_NATIVE_TEST=ON "$@" &&
    log "$name-build" cmake --build "$OUT/$name" --parallel "${JOBS:-2}"
}

build_for() { # build_for PROCESSOR: with its cross compiler, without shared libraries
  need "$1-linux-gnu-g++" "g++-${1/_/-}-linux-gnu" &&
    build "$1" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$1" -DCMAKE_CXX_COMPILER="$1-linux-gnu-g++" \
      -DCMAKE_EXE_LINKER_FLAGS=-static
}

run() { # run LOG "EXPECTED ISAS" COMMAND...: the tests pass and cover exactly these, or at least scalar if empty
  local name=$1 expected=$2
  shift 2
  log "$name" timeout 300 "$@" || return 1
  local tested
  tested=$(sed -n 's/^tested: *//p' "$OUT/$name.log")
  echo "  $name: $tested: $(tail -n 1 "$OUT/$name.log")"
  [[ $(tail -n 1 "$OUT/$name.log") =~ ^[1-9][0-9]*\ passed,\ 0\ failed$ ]] || fail "see $OUT/$name.log" || return 1
  [[ -z $expected || $tested == "$expected" ]] || fail "tested '$tested' where '$expected' was expected"
}

# What an object compiled for one instruction set may bring along: one symbol of its own. Anything weak in it (an inline
# function of a header) could replace the portable copy of the whole program; anything undefined could do so for it.
check_object() { # check_object TOOL_PREFIX OBJECT SYMBOL
  local exported undefined other
  exported=$("$1nm" -C --defined-only --extern-only "$2" | sed 's/^[0-9a-f]* *//')
  other=$("$1nm" -C "$2" | grep -E '^[0-9a-f ]* [WwVvu] ')
  undefined=$("$1nm" -u "$2" | grep -v -w -E 'memset|memcpy|memmove|_GLOBAL_OFFSET_TABLE_')
  [[ $exported =~ ^[DR]\ exactlm::$3$ ]] || fail "$3 exports: $exported" || return 1
  [[ -z $other && -z $undefined ]] || fail "$3 has symbols: $other $undefined" || return 1
}

# Instructions that round or saturate differently from what is written: fused multiply-add, saturating dot products.
check_instructions() { # check_instructions TOOL_PREFIX OBJECT
  local found
  found=$("$1objdump" -d --no-show-raw-insn "$2" | grep -m 3 -w -E \
    'vf(n?m(add|sub)|m(addsub|subadd))[0-9a-z]*|v?pmaddubsw|vpdp(bus|wss)ds|fn?m(add|sub)|fml[as]l?2?|sq[a-z0-9]*dml[a-z0-9]*')
  [[ -z $found ]] || fail "$2 has: $found"
}

check_symbols() { # check_symbols TOOL_PREFIX BUILD "ISAS"
  local isa kind count=0
  need "$1nm" "binutils for $1" && need "$1objdump" "binutils for $1" || return 1
  for isa in $3; do
    for kind in dot elementwise; do
      local object=("$OUT/$2"/CMakeFiles/"${kind}_$isa".dir/native/*.o)
      [[ -f ${object[0]} ]] || fail "no object for ${kind}_$isa" || return 1
      check_object "$1" "${object[0]}" "${kind}_$isa" && check_instructions "$1" "${object[0]}" || return 1
      count=$((count + 1))
    done
  done
  echo "  symbols of $2: $count objects"
}

isas_of() { (cd "$OUT/$1/CMakeFiles" && printf '%s\n' dot_*.dir) | sed 's/^dot_//; s/\.dir$//' | xargs; }

step_host() { build host && run host "" "$OUT/host/native_test"; }

step_symbols() {
  build host && check_symbols "" host "$(isas_of host)" || return 1
  # The check itself: it must refuse an object with an inline function and one with a fused multiply-add.
  local bad=$OUT/bad
  printf 'inline int f(int x) { return x + 1; }\nnamespace exactlm { extern int (*const dot_bad)(int);\n%s\n' \
    'int (*const dot_bad)(int) = f; }' > "$bad.cpp"
  log bad "${CXX:-g++}" -c "$bad.cpp" -o "$bad.o" || return 1
  ! check_object "" "$bad.o" dot_bad || fail "an inline function was not noticed" || return 1
  if [[ $(uname -m) == x86_64 ]]; then
    echo 'double f(double x, double y, double z) { return x * y + z; }' > "$bad.cpp"
    log bad "${CXX:-g++}" -O2 -mfma -ffp-contract=fast -c "$bad.cpp" -o "$bad.o" || return 1
    ! check_instructions "" "$bad.o" || fail "a fused multiply-add was not noticed" || return 1
  fi
  why=""
}

step_sanitize() {
  build sanitize -DEXACTLM_SANITIZE=ON -DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_CXX_FLAGS_SANITIZE=-O1 &&
    UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1 \
      run sanitize "" "$OUT/sanitize/native_test" --short
}

step_aarch64() {
  need qemu-aarch64 qemu-user && build_for aarch64 &&
    run aarch64 "scalar neon neondotprod" qemu-aarch64 -cpu max "$OUT/aarch64/native_test" --short &&
    run aarch64-a53 "scalar neon" qemu-aarch64 -cpu cortex-a53 "$OUT/aarch64/native_test" --short &&
    check_symbols aarch64-linux-gnu- aarch64 "scalar neon neondotprod"
}

step_haswell() {
  [[ $(uname -m) == x86_64 ]] || fail "needs an x86-64 machine" || return 1
  need qemu-x86_64 qemu-user && build host &&
    run haswell "scalar avx2" qemu-x86_64 -cpu Haswell "$OUT/host/native_test" --short &&
    run nehalem "scalar" qemu-x86_64 -cpu Nehalem "$OUT/host/native_test" --short
}

step_riscv64() {
  need qemu-riscv64 qemu-user && build_for riscv64 &&
    run riscv64 "scalar" qemu-riscv64 "$OUT/riscv64/native_test" --short
}

step_s390x() { # big-endian
  need qemu-s390x qemu-user && build_for s390x && run s390x "scalar" qemu-s390x "$OUT/s390x/native_test" --short
}

mkdir -p "$OUT"
status=0
[[ $# -gt 0 ]] || set -- "${ALL[@]}"
for step in "$@"; do
  [[ " ${ALL[*]} " == *" $step "* ]] || {
    echo "unknown step '$step'; steps: ${ALL[*]}" >&2
    exit 2
  }
done
for step in "$@"; do
  why=""
  if "step_$step"; then
    echo "$step: ok"
  else
    echo "$step: failed: $why"
    status=1
  fi
done
exit $status
