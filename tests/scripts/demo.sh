#!/bin/sh
# A simulated fleet, brought up by the real controller with the real helper over real SSH.
set -eu
bin=$1 dir=$2 nodes=$3 gpu=$4
rm -rf "$dir"
mkdir -p "$dir"
state=$(cd "$dir" && pwd)/state
# Not in the checkout: the paths of nodes are options of mounts and of ssh, which carry no blank.
fleet=$(mktemp -d)
trap 'rm -rf "$fleet"' EXIT
echo "starting $nodes simulated nodes with 8 GPUs each ($gpu)"
XDG_STATE_HOME=$state "$bin/gpufleet-lab" exec --nodes "$nodes" --gpu "$gpu" --gpus-per-node 8 \
    --seed-drift --dir "$fleet" -- \
    sh -euc '
        echo; echo "\$ gpufleet plan playbooks/bringup.yaml -i inventory.yaml"
        "$1/gpufleet" plan playbooks/bringup.yaml -i "$GPUFLEET_INVENTORY"
        echo; echo "\$ gpufleet run playbooks/bringup.yaml -i inventory.yaml --yes"
        "$1/gpufleet" run playbooks/bringup.yaml -i "$GPUFLEET_INVENTORY" --yes' sh "$bin"
