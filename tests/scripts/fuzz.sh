#!/bin/sh
# fuzz.sh SECONDS [TARGET]: libFuzzer on each target.
# Findings are in tests/fuzz/artifacts, new inputs in tests/fuzz/work; `-merge=1` adds those that increase coverage to
# the corpus.
set -eu
seconds=$1 only=${2:-}
command -v c++ >/dev/null || { echo "fuzz: libFuzzer needs a C++ compiler (apt-get install g++)" >&2; exit 1; }
cd "$(dirname "$0")/../fuzz"
host=$(rustc -vV | sed -n 's/^host: //p')
# These options instead of `cargo fuzz`: the coverage passes are stable options of rustc. Only the sanitizers are not,
# and they find little in safe Rust.
flags="-Cpasses=sancov-module -Ccodegen-units=1 --cfg fuzzing"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
  flags="$flags -Cllvm-args=-sanitizer-coverage-$option"
done
RUSTFLAGS="$flags" RUSTC_BOOTSTRAP=1 GPUFLEET_NODE_BIN="${GPUFLEET_NODE_BIN:-/dev/null}" \
  cargo build --release --target "$host"
status=0
for path in corpus/*/; do
  name=$(basename "$path")
  [ -z "$only" ] || [ "$only" = "$name" ] || continue
  mkdir -p "work/$name" "artifacts/$name"
  echo "== $name: $seconds s"
  "target/$host/release/$name" "work/$name" "corpus/$name" -max_total_time="$seconds" -max_len=4096 -timeout=20 \
    -rss_limit_mb=4096 -artifact_prefix="artifacts/$name/" -print_final_stats=1 2>"work/$name.log" || {
      tail -40 "work/$name.log" >&2
      status=1
    }
  grep -E 'stat::number_of_executed_units|cov:' "work/$name.log" | tail -2 || true
done
exit $status
