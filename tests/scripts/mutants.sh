#!/bin/sh
# How strong the tests of the pure cores are: cargo-mutants changes them one place at a time, and the tests have to notice.
# `mutants.sh` measures both cores, `mutants.sh rollout` or `mutants.sh interpreter` one; MUTANTS_SHARD=0/8 an eighth of it.
#
# Each core is cut out into a crate of its own below target/mutants, with the modules that it reads, its own tests and the
# crate of the language: a mutant then costs seconds, and no test of anything else can be the one that notices.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
work=$root/target/mutants
tool=$root/target/mutants-tool
version=27.1.0

cargo_mutants() {
    if cargo mutants --version >/dev/null 2>&1; then
        cargo mutants "$@"
    else
        [ -x "$tool/bin/cargo-mutants" ] || cargo install cargo-mutants --version "$version" --locked --root "$tool" >&2
        "$tool/bin/cargo-mutants" mutants "$@"
    fi
}

# cut CORE MODULE...: the crate of a core and of the modules that it reads, those without their tests.
cut() {
    core=$1
    crate=$work/$core
    shift
    rm -rf "$crate/src"
    mkdir -p "$crate/src"
    cp -R "controller/src/$core" "$crate/src/"
    for module in "$@"; do
        cp -R "controller/src/$module" "$crate/src/"
        find "$crate/src/$module" -name '*.rs' -exec sed -i '/^#\[cfg(test)\]$/{N;/\n.*mod [a-z_]*;$/d;}' {} +
    done
    for module in "$core" "$@"; do echo "pub mod $module;"; done >"$crate/src/lib.rs"
    sed -n '/gpufleet_language::/,$p' controller/src/lib.rs >>"$crate/src/lib.rs"
    cp Cargo.lock "$crate/Cargo.lock"
    {
        printf '[package]\nname = "%s"\nversion = "0.0.0"\nedition = "2024"\npublish = false\n\n[workspace]\n\n' "$core-alone"
        printf '[profile.dev]\ndebug = false\n\n[profile.dev.package."*"]\nopt-level = 1\n\n[dependencies]\n'
        sed -n '/^\[workspace.dependencies\]/,/^\[workspace.lints/p' Cargo.toml | sed "s|path = \"|path = \"$root/|" |
            grep -E "^($dependencies) = "
    } >"$crate/Cargo.toml"
    # Why processor time: a mutant that never ends is noticed by it, and a machine that does other work is no mutant.
    mkdir -p "$crate/.cargo"
    cat >"$crate/.cargo/config.toml" <<'LIMIT'
[target.'cfg(unix)']
runner = ["sh", "-c", "ulimit -t 20; exec \"$0\" \"$@\""]
LIMIT
}

# measure CORE SKIPPED: changes the core and runs its tests against each change.
measure() {
    core=$1
    skipped=$2
    shift 2
    cd "$work/$core"
    # Why in place: it is a copy, and its build is kept for the next measurement.
    status=0
    cargo_mutants --in-place --colors never --file "src/$core/**" ${MUTANTS_SHARD:+--sharding round-robin --shard "$MUTANTS_SHARD"} \
        --timeout 600 --cargo-arg=--lib "$@" -- "$core::" -- --skip "$skipped" || status=$?
    cd "$root"
    # Why: 2 is a mutant that lived, 3 one that took too long: both are listed, and judged in docs/reliability.md.
    case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac
    tally "$core"
}

lines() {
    wc -l <"$work/$1/mutants.out/$2.txt" | tr -d ' '
}

# tally CORE: the line for docs/reliability.md, and what lived.
tally() {
    caught=$(lines "$1" caught)
    missed=$(lines "$1" missed)
    timeout=$(lines "$1" timeout)
    viable=$((caught + missed + timeout))
    [ "$viable" -gt 0 ] || return 0
    percent=$(awk "BEGIN { printf \"%.1f\", 100 * ($caught + $timeout) / $viable }")
    echo "$1: $viable mutants, $caught caught, $timeout never ended, $missed lived ($percent% noticed), $(lines "$1" unviable) do not compile"
    sed "s|^src/||; s|^|  lived: |" "$work/$1/mutants.out/missed.txt"
}

cores=${1:-rollout interpreter}
[ "$#" -eq 0 ] || shift
for core in $cores; do
    case $core in
    rollout)
        dependencies='gpufleet-language|gpufleet-protocol|insta|jiff|proptest|rustix|serde|serde_json|thiserror'
        cut rollout
        # Why not all of it: what 500 schedules do not notice is rare, and the measurement of speed takes half the time.
        GPUFLEET_SCHEDULES=${GPUFLEET_SCHEDULES:-500} measure rollout 'a_fleet_of_a_hundred_thousand' "$@"
        ;;
    interpreter)
        dependencies='gpufleet-language|gpufleet-protocol|insta|jiff|proptest|regex|rustix|schemars|serde|serde_json|sha2|thiserror'
        cut interpreter event rollout
        mkdir -p "$work/interpreter/src/engine"
        cp controller/src/engine/task_report.rs "$work/interpreter/src/engine/"
        echo 'pub mod engine { pub(crate) mod task_report; }' >>"$work/interpreter/src/lib.rs"
        measure interpreter 'many_hosts_cost_little' "$@"
        ;;
    *)
        echo "error: \`$core\` is no core; write rollout or interpreter" >&2
        exit 1
        ;;
    esac
done
