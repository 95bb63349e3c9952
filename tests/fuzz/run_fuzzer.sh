#!/bin/sh
# run_fuzzer.sh FUZZER CORPUS SECONDS: fuzzes from the kept corpus without adding to it.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1" -max_total_time="$3" -max_len=16384 -rss_limit_mb=2048 -print_final_stats=1 \
  -artifact_prefix="${FUZZ_ARTIFACTS:-$scratch/}" "$scratch" "$2"
