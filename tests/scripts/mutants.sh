#!/bin/sh
# Measures the tests of the pure cores: cargo-mutants changes the cores in one place at a time, and the tests must
# fail. `mutants.sh` measures both cores, `mutants.sh rollout` or `mutants.sh interpreter` one; MUTANTS_SHARD=0/8 an
# eighth of it. MUTANTS_CHECK=1 only cuts the cores out and compiles them with their tests, which takes a minute.
#
# Each core is copied into its own crate below target/mutants, with the modules that it uses, its own tests and the
# language crate. A mutant then costs seconds, and only these tests can find it.
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

# cut CORE MODULE...: creates the crate of a core and of the modules that it uses, these without their tests.
cut() {
    core=$1
    crate=$work/$core
    shift
    rm -rf "$crate/src"
    mkdir -p "$crate/src"
    cp -R "controller/src/$core" "$crate/src/"
    for module in "$@"; do
        [ -d "controller/src/$module" ] || {
            cp "controller/src/$module.rs" "$crate/src/"
            continue
        }
        cp -R "controller/src/$module" "$crate/src/"
        # Tests of a module are a file, or a block up to the brace at the margin. They may use any part of the library.
        find "$crate/src/$module" -name '*.rs' \
            -exec sed -i -e '/^#\[cfg(test)\]$/{N;/\n.*mod [a-z_]*;$/d;}' -e '/\n.*mod [a-z_]* {$/,/^}$/d' {} +
    done
    # Why allowed: the rest of the library uses what is unused here.
    echo '#![allow(dead_code, unused_imports)]' >"$crate/src/lib.rs"
    for module in "$core" "$@"; do echo "pub mod $module;"; done >>"$crate/src/lib.rs"
    sed -n '/gpufleet_language::/,$p' controller/src/lib.rs >>"$crate/src/lib.rs"
    cp Cargo.lock "$crate/Cargo.lock"
    {
        printf '[package]\nname = "%s"\nversion = "0.0.0"\nedition = "2024"\npublish = false\n\n[workspace]\n\n' "$core-alone"
        printf '[profile.dev]\ndebug = false\n\n[profile.dev.package."*"]\nopt-level = 1\n\n[dependencies]\n'
        sed -n '/^\[workspace.dependencies\]/,/^\[workspace.lints/p' Cargo.toml | sed "s|path = \"|path = \"$root/|" |
            sed 's|^gpufleet-protocol = {|& features = ["schema"],|' | grep -E "^($dependencies) = "
    } >"$crate/Cargo.toml"
    # CPU time stops a mutant that never ends, and does not depend on other work of the machine.
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
    if [ "${MUTANTS_CHECK:-0}" = 1 ]; then
        cargo check --quiet --tests
        cd "$root"
        echo "$core: compiles alone"
        return
    fi
    # In place, because it is a copy, and its build is kept for the next measurement.
    status=0
    cargo_mutants --in-place --colors never --file "src/$core/**" ${MUTANTS_SHARD:+--sharding round-robin --shard "$MUTANTS_SHARD"} \
        --timeout 600 --cargo-arg=--lib "$@" -- "$core::" -- --skip "$skipped" || status=$?
    cd "$root"
    # 2 means that a mutant survived, 3 that one took too long; both are listed, and discussed in docs/reliability.md.
    case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac
    tally "$core"
}

lines() {
    wc -l <"$work/$1/mutants.out/$2.txt" | tr -d ' '
}

# tally CORE: prints the line for docs/reliability.md, and the surviving mutants.
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
        # A part only: what 500 schedules do not find is rare, and the measurement of speed takes half of the time.
        GPUFLEET_SCHEDULES=${GPUFLEET_SCHEDULES:-500} measure rollout 'a_fleet_of_a_hundred_thousand' "$@"
        ;;
    interpreter)
        dependencies='gpufleet-language|gpufleet-protocol|insta|jiff|proptest|regex|rustix|schemars|serde|serde_json|sha2|shell-words|thiserror'
        cut interpreter event index
        measure interpreter 'many_hosts_cost_little' "$@"
        ;;
    *)
        echo "error: \`$core\` is no core; write rollout or interpreter" >&2
        exit 1
        ;;
    esac
done
