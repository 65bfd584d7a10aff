#!/usr/bin/env python3
"""Compares what gpufleet reads of a node's GPUs with what nvidia-smi says of them, value by value.

    gpufleet facts all -i inventory.yaml --format json >facts.json    # one host, the machine with the GPUs
    nvidia-smi -q -x >smi.xml
    tests/hardware/compare.py facts.json smi.xml

Prints a table, and exits with 1 where a value differs. Both commands only read.
"""
import json
import sys
from xml.etree import ElementTree


def words(text):
    return None if text in (None, "N/A", "[N/A]") else text.strip()


def number(text):
    text = words(text)
    return None if text is None else float(text.split()[0])


def milli(text):
    value = number(text)
    return None if value is None else value * 1000


def on(text):
    return {"Enabled": True, "Disabled": False}.get(words(text))


def pci(text):
    domain, rest = words(text).lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def lower(text):
    text = words(text)
    return text and text.lower().replace(" ", "_").replace("exclusive_process", "exclusive")


# The name of the fact, where nvidia-smi says it, how its text is read, and by how much readings of two moments may differ.
VALUES = [
    ("uuid", "uuid", words, 0),
    ("pci", "pci/pci_bus_id", pci, 0),
    ("minor", "minor_number", number, 0),
    ("name", "product_name", words, 0),
    ("architecture", "product_architecture", words, 0),
    ("memory_mib", "fb_memory_usage/total", number, 0),
    ("vbios", "vbios_version", words, 0),
    ("serial", "serial", words, 0),
    ("board_part", "board_part_number", words, 0),
    ("persistence", "persistence_mode", on, 0),
    ("ecc_current", "ecc_mode/current_ecc", on, 0),
    ("ecc_pending", "ecc_mode/pending_ecc", on, 0),
    ("mig_current", "mig_mode/current_mig", on, 0),
    ("mig_pending", "mig_mode/pending_mig", on, 0),
    ("power_limit_mw", "gpu_power_readings/requested_power_limit|gpu_power_readings/current_power_limit", milli, 0),
    ("power_default_mw", "gpu_power_readings/default_power_limit", milli, 0),
    ("power_min_mw", "gpu_power_readings/min_power_limit", milli, 0),
    ("power_max_mw", "gpu_power_readings/max_power_limit", milli, 0),
    ("power_enforced_mw", "gpu_power_readings/current_power_limit", milli, 0),
    ("compute_mode", "compute_mode", lower, 0),
    ("graphics_clock_mhz", "clocks/graphics_clock", number, 100),
    ("memory_clock_mhz", "clocks/mem_clock", number, 0),
    ("max_graphics_clock_mhz", "max_clocks/graphics_clock", number, 0),
    ("max_memory_clock_mhz", "max_clocks/mem_clock", number, 0),
    ("temperature_c", "temperature/gpu_temp", number, 3),
    ("pcie_generation", "pci/pci_gpu_link_info/pcie_gen/current_link_gen", number, 0),
    ("pcie_width", "pci/pci_gpu_link_info/link_widths/current_link_width", lambda text: number(words(text).rstrip("x")), 0),
]


def said(gpu, paths):
    found = (gpu.findtext(path) for path in paths.split("|"))
    return next((text for text in found if text is not None), None)


def main():
    facts_file, smi_file = sys.argv[1:]
    with open(facts_file, encoding="utf-8") as file:
        (node,) = json.load(file).values()
    smi = ElementTree.parse(smi_file)
    whole = [("driver", "driver_version"), ("CUDA", "cuda_version")]
    pairs = [(name, node["gpu"][path], smi.findtext(path)) for name, path in whole]
    rows = [(name, ours, theirs, ours == theirs) for name, ours, theirs in pairs]
    gpus = smi.findall("gpu")
    rows.append(("GPUs", len(node["gpu"]["gpus"]), len(gpus), len(node["gpu"]["gpus"]) == len(gpus)))
    for ours_all, gpu in zip(node["gpu"]["gpus"], gpus):
        for name, paths, read, tolerance in VALUES:
            text = said(gpu, paths)
            ours, theirs = ours_all.get(name), read(text) if words(text) else None
            close = isinstance(theirs, float) and isinstance(ours, (int, float)) and abs(ours - theirs) <= tolerance
            rows.append((f"GPU {ours_all['index']} {name}", ours, text, close or ours == theirs))
    print("| value | gpufleet | nvidia-smi | |\n|---|---|---|---|")
    for name, ours, theirs, same in rows:
        print(f"| {name} | {ours} | {theirs} | {'same' if same else '**differs**'} |")
    different = sum(not same for *_, same in rows)
    print(f"\n{len(rows) - different} of {len(rows)} are the same.", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
