//! Signals that NVML gives: of a GPU, and of the node that has it.

use super::{Scope, SignalInfo};
use crate::Unit;

const fn node(name: &'static str, source: &'static str) -> SignalInfo {
    SignalInfo { name, scope: Scope::Node, unit: None, source }
}

const fn gpu(name: &'static str, unit: Option<Unit>, source: &'static str) -> SignalInfo {
    SignalInfo { name, scope: Scope::Gpu, unit, source }
}

pub static SIGNALS: &[SignalInfo] = &[
    node("nvml_init_code", "Result of `nvmlInit_v2`; 12 without the library."),
    node("worker_state", "What became of the process that reads NVML: `done`, `hung` or `crashed`."),
    node(
        "nvml_count",
        "Number of GPUs that the driver has: those that it lists, by `nvmlDeviceGetCount_v2`, and drained ones, by `nvmlDeviceQueryDrainState`.",
    ),
    node(
        "driver_version",
        "Version of the driver's library, by `nvmlSystemGetDriverVersion`; where `nvmlInit_v2` fails, by `nvmlSystemGetNVMLVersion`.",
    ),
    node(
        "cuda_version",
        "Highest CUDA version of the driver, major times 1000 plus minor times 10, by `nvmlSystemGetCudaDriverVersion_v2`.",
    ),
    node(
        "excluded_count",
        "Number of GPUs that the driver is told to leave out, by `nvmlGetExcludedDeviceCount`.",
    ),
    node("cc_feature", "1 with confidential computing, by `nvmlSystemGetConfComputeState`."),
    node("cc_devtools", "1 if confidential computing allows debugging, by `nvmlSystemGetConfComputeState`."),
    node("cc_ready", "1 if confidential GPUs accept work, by `nvmlSystemGetConfComputeGpusReadyState`."),
    gpu(
        "lost_code",
        None,
        "Code of `nvmlDeviceGetHandleByIndex_v2` or `nvmlDeviceGetUUID`, or 15 or 16 of any later call; 0 if the GPU answers.",
    ),
    gpu("uuid", None, "UUID of the board, by `nvmlDeviceGetUUID`."),
    gpu("name", None, "Product name, by `nvmlDeviceGetName`."),
    gpu("serial", None, "Serial number of the board, by `nvmlDeviceGetSerial`."),
    gpu("board_part", None, "Part number of the board, by `nvmlDeviceGetBoardPartNumber`."),
    gpu("vbios", None, "Version of the video BIOS, by `nvmlDeviceGetVbiosVersion`."),
    gpu("inforom", None, "Version of the InfoROM image, by `nvmlDeviceGetInforomImageVersion`."),
    gpu(
        "inforom_code",
        None,
        "Result of `nvmlDeviceValidateInforom`, for a deep audit only; 14 if any other call gave 14.",
    ),
    gpu("arch", None, "Architecture as a word such as `Hopper`, by `nvmlDeviceGetArchitecture`."),
    gpu("pci", None, "PCI address as sysfs writes it, by `nvmlDeviceGetPciInfo_v3`."),
    gpu("ecc_current", None, "1 with ECC, by `nvmlDeviceGetEccMode`."),
    gpu("ecc_pending", None, "1 with ECC after the next reset, by `nvmlDeviceGetEccMode`."),
    gpu("ecc_default", None, "1 if the board is delivered with ECC on, by `nvmlDeviceGetDefaultEccMode`."),
    gpu(
        "ecc_cor_vol",
        None,
        "Corrected memory errors since the driver was loaded, by `nvmlDeviceGetTotalEccErrors`.",
    ),
    gpu(
        "ecc_unc_vol",
        None,
        "Uncorrected memory errors since the driver was loaded, by `nvmlDeviceGetTotalEccErrors`.",
    ),
    gpu(
        "ecc_cor_agg",
        None,
        "Corrected memory errors over the life of the board, by `nvmlDeviceGetTotalEccErrors`.",
    ),
    gpu(
        "ecc_unc_agg",
        None,
        "Uncorrected memory errors over the life of the board, by `nvmlDeviceGetTotalEccErrors`.",
    ),
    gpu(
        "ecc_cor_sram_vol",
        None,
        "Corrected errors in SRAM since the driver was loaded, by `nvmlDeviceGetMemoryErrorCounter`.",
    ),
    gpu(
        "ecc_unc_sram_vol",
        None,
        "Uncorrected errors in SRAM since the driver was loaded, by `nvmlDeviceGetMemoryErrorCounter`.",
    ),
    gpu(
        "sram_threshold",
        None,
        "1 if uncorrected errors in SRAM exceed NVIDIA's threshold, by `nvmlDeviceGetSramEccErrorStatus`.",
    ),
    gpu(
        "sram_unc_vol",
        None,
        "Parity and double-bit errors in SRAM since the driver was loaded, by `nvmlDeviceGetSramEccErrorStatus`.",
    ),
    gpu(
        "sram_unc_agg",
        None,
        "Parity and double-bit errors in SRAM over the life of the board, by `nvmlDeviceGetSramEccErrorStatus`.",
    ),
    gpu(
        "sram_cor_agg",
        None,
        "Corrected errors in SRAM over the life of the board, by `nvmlDeviceGetSramEccErrorStatus`.",
    ),
    gpu("remap_cor", None, "Memory rows replaced for corrected errors, by `nvmlDeviceGetRemappedRows`."),
    gpu("remap_unc", None, "Memory rows replaced for uncorrected errors, by `nvmlDeviceGetRemappedRows`."),
    gpu(
        "remap_pending",
        None,
        "1 if a memory row waits for a reset to be replaced, by `nvmlDeviceGetRemappedRows`.",
    ),
    gpu("remap_failed", None, "1 if a memory row could not be replaced, by `nvmlDeviceGetRemappedRows`."),
    gpu(
        "hist_max",
        None,
        "Memory banks with all of their spare rows left, by `nvmlDeviceGetRowRemapperHistogram`.",
    ),
    gpu(
        "hist_high",
        None,
        "Memory banks with most of their spare rows left, by `nvmlDeviceGetRowRemapperHistogram`.",
    ),
    gpu(
        "hist_partial",
        None,
        "Memory banks with some spare rows left, by `nvmlDeviceGetRowRemapperHistogram`.",
    ),
    gpu("hist_low", None, "Memory banks with few spare rows left, by `nvmlDeviceGetRowRemapperHistogram`."),
    gpu("hist_none", None, "Memory banks with no spare rows left, by `nvmlDeviceGetRowRemapperHistogram`."),
    gpu(
        "retired_sbe",
        None,
        "Memory pages retired for repeated corrected errors, by `nvmlDeviceGetRetiredPages_v2`.",
    ),
    gpu(
        "retired_dbe",
        None,
        "Memory pages retired for an uncorrected error, by `nvmlDeviceGetRetiredPages_v2`.",
    ),
    gpu(
        "retired_dbe_last_7d",
        None,
        "Those of the last seven days, by the times of `nvmlDeviceGetRetiredPages_v2` and the node's clock.",
    ),
    gpu(
        "retired_pending",
        None,
        "1 if a memory page waits for a reboot to be retired, by `nvmlDeviceGetRetiredPagesPendingStatus`.",
    ),
    gpu(
        "repair_channel",
        None,
        "1 if a memory channel waits for a reset to be repaired, by `nvmlDeviceGetRepairStatus`.",
    ),
    gpu(
        "repair_tpc",
        None,
        "1 if a processor cluster waits for a reset to be repaired, by `nvmlDeviceGetRepairStatus`.",
    ),
    gpu(
        "unrepairable",
        None,
        "1 if memory failed that no repair can replace, by `nvmlDeviceGetUnrepairableMemoryFlag_v1`.",
    ),
    gpu(
        "recovery_action",
        None,
        "What the driver asks for, 0 for nothing, by field 230 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu("recovery_action_known", None, "Whether field 230 of `nvmlDeviceGetFieldValues` has a value."),
    gpu(
        "pcie_gen",
        None,
        "Generation of the PCIe link, by `nvmlDeviceGetCurrPcieLinkGeneration`; absent if the link is made up.",
    ),
    gpu(
        "pcie_width",
        None,
        "Lanes of the PCIe link, by `nvmlDeviceGetCurrPcieLinkWidth`; absent if the link is made up.",
    ),
    gpu(
        "pcie_gen_max",
        None,
        "Highest PCIe generation of GPU and slot together, by `nvmlDeviceGetMaxPcieLinkGeneration`.",
    ),
    gpu(
        "pcie_gen_gpu",
        None,
        "Highest PCIe generation of the GPU alone, by `nvmlDeviceGetGpuMaxPcieLinkGeneration`.",
    ),
    gpu(
        "pcie_width_max",
        None,
        "Most PCIe lanes of GPU and slot together, by `nvmlDeviceGetMaxPcieLinkWidth`.",
    ),
    gpu("pcie_replays", None, "PCIe packets sent again, by `nvmlDeviceGetPcieReplayCounter`."),
    gpu("pcie_l0_recovery", None, "Recoveries of the PCIe link, by field 169 of `nvmlDeviceGetFieldValues`."),
    gpu(
        "aer_fatal",
        None,
        "Fatal PCIe errors of the GPU and of the ports above it since the boot, by `aer_dev_fatal`; absent where the kernel does not count them.",
    ),
    gpu(
        "aer_nonfatal_without_ur",
        None,
        "Uncorrected PCIe errors of these that are not fatal, without unsupported requests, which enumeration makes, by `aer_dev_nonfatal`.",
    ),
    gpu("aer_correctable", None, "Corrected PCIe errors of these, by `aer_dev_correctable`."),
    gpu(
        "aer_devices",
        None,
        "Which of these devices counted which uncorrected errors, such as `0000:17:00.0 nonfatal CmpltTO=1`, at most 8.",
    ),
    gpu("nvl_count", None, "NVLinks whose state can be read, by `nvmlDeviceGetNvLinkState`."),
    gpu("nvl_active", None, "NVLinks that are up, by `nvmlDeviceGetNvLinkState`."),
    gpu(
        "nvl_speed_min",
        None,
        "Speed of the slowest NVLink in MB/s, by field 164 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu(
        "nvl_speed_max",
        None,
        "Speed of the fastest NVLink in MB/s, by field 164 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu("nvl_replay", None, "Replays of all NVLinks, by field 161 of `nvmlDeviceGetFieldValues`."),
    gpu("nvl_recovery", None, "Recoveries of all NVLinks, by field 162 of `nvmlDeviceGetFieldValues`."),
    gpu(
        "nvl_effective_ber",
        None,
        "Bit error rate of the worst NVLink after correction, by field 220 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu(
        "nvl_symbol_ber",
        None,
        "Symbol error rate of the worst NVLink, by field 222 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu(
        "fabric_state",
        None,
        "Registration with the NVLink fabric: 0 not supported, 1 not started, 2 in progress, 3 completed, by `nvmlDeviceGetGpuFabricInfoV`.",
    ),
    gpu(
        "fabric_status",
        None,
        "Code of a completed registration with the NVLink fabric, by `nvmlDeviceGetGpuFabricInfoV`.",
    ),
    gpu(
        "fabric_clique",
        None,
        "Number of the GPU's clique in the NVLink fabric, by `nvmlDeviceGetGpuFabricInfoV`.",
    ),
    gpu("fabric_cluster", None, "UUID of the NVLink fabric, by `nvmlDeviceGetGpuFabricInfoV`."),
    gpu(
        "fabric_mask",
        None,
        "Health of the NVLink fabric in two-bit fields, by `nvmlDeviceGetGpuFabricInfoV`, version 2 and later.",
    ),
    gpu(
        "fabric_summary",
        None,
        "Health of the NVLink fabric: 0 not supported, 1 healthy, 2 unhealthy, 3 limited, by `nvmlDeviceGetGpuFabricInfoV`, version 3.",
    ),
    gpu(
        "c2c_enabled",
        None,
        "1 if the GPU is linked to a CPU of its module, by `nvmlDeviceGetC2cModeInfoV`; absent otherwise.",
    ),
    gpu("c2c_count", None, "Links to the CPU of the module, by field 170 of `nvmlDeviceGetFieldValues`."),
    gpu("c2c_active", None, "Those that are up, by field 171 of `nvmlDeviceGetFieldValues`."),
    gpu("temp_c", None, "Temperature in degrees Celsius, by `nvmlDeviceGetTemperature`."),
    gpu(
        "margin_c",
        None,
        "Distance in degrees Celsius to the temperature that slows clocks, by `nvmlDeviceGetMarginTemperature`.",
    ),
    gpu(
        "tlimit_slowdown_c",
        None,
        "The margin at which hardware slows clocks, by field 194 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu(
        "mem_temp_c",
        None,
        "Temperature of the memory in degrees Celsius, by field 82 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu(
        "mem_max_c",
        None,
        "Highest temperature of the memory in degrees Celsius, by `nvmlDeviceGetTemperatureThreshold`.",
    ),
    gpu(
        "reasons",
        None,
        "Bits that say why clocks are low, 0x1 for idle, by `nvmlDeviceGetCurrentClocksEventReasons`.",
    ),
    gpu(
        "ns_sw_power",
        None,
        "Nanoseconds below full clocks for the power limit, by field 74 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu(
        "ns_sw_thermal",
        None,
        "Nanoseconds slowed by software for heat, by field 269 of `nvmlDeviceGetFieldValues`, 251 before driver 580.82.",
    ),
    gpu(
        "ns_hw_thermal",
        None,
        "Nanoseconds slowed by hardware for heat, by field 270 of `nvmlDeviceGetFieldValues`, 252 before driver 580.82.",
    ),
    gpu(
        "ns_power_brake",
        None,
        "Nanoseconds slowed by an external power brake, by field 271 of `nvmlDeviceGetFieldValues`, 253 before driver 580.82.",
    ),
    gpu("num_fans", None, "Number of fans, by `nvmlDeviceGetNumFans`."),
    gpu(
        "fan_min_percent",
        Some(Unit::Percent),
        "Speed of the slowest fan, by `nvmlDeviceGetFanSpeed_v2`; absent without fans.",
    ),
    gpu(
        "fan_target",
        Some(Unit::Percent),
        "Speed that the slowest fan shall have, by `nvmlDeviceGetTargetFanSpeed`; absent without fans.",
    ),
    gpu("power_limit_w", Some(Unit::Watts), "Requested power limit, by `nvmlDeviceGetPowerManagementLimit`."),
    gpu(
        "power_default_w",
        Some(Unit::Watts),
        "Power limit of the board as delivered, by `nvmlDeviceGetPowerManagementDefaultLimit`.",
    ),
    gpu(
        "power_enforced_w",
        Some(Unit::Watts),
        "Power limit in effect, by `nvmlDeviceGetEnforcedPowerLimit`.",
    ),
    gpu("power_draw_w", Some(Unit::Watts), "Power draw, by `nvmlDeviceGetPowerUsage`."),
    gpu(
        "module_draw_w",
        Some(Unit::Watts),
        "Power draw of the whole module, by field 185 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu(
        "module_limit_w",
        Some(Unit::Watts),
        "Power limit of the whole module, by field 190 of `nvmlDeviceGetFieldValues`.",
    ),
    gpu("sm_mhz", Some(Unit::Megahertz), "Clock of the multiprocessors, by `nvmlDeviceGetClockInfo`."),
    gpu("mem_mhz", Some(Unit::Megahertz), "Clock of the memory, by `nvmlDeviceGetClockInfo`."),
    gpu(
        "mem_mhz_max",
        Some(Unit::Megahertz),
        "Highest clock of the memory, by `nvmlDeviceGetSupportedMemoryClocks`.",
    ),
    gpu(
        "lock_record",
        Some(Unit::Megahertz),
        "Highest clock that gpufleet locked in this boot and load of the driver, 0 for none, by its own record.",
    ),
    gpu("pstate", None, "Performance state, 0 for the fastest, by `nvmlDeviceGetPerformanceState`."),
    gpu(
        "util_gpu",
        Some(Unit::Percent),
        "Share of the last sampling period with work, by `nvmlDeviceGetUtilizationRates`.",
    ),
    gpu(
        "util_mem",
        Some(Unit::Percent),
        "Share of the last sampling period with memory traffic, by `nvmlDeviceGetUtilizationRates`.",
    ),
    gpu("idle", None, "Whether the idle bit of `reasons` is set, or there is neither work nor a process."),
    gpu("busy", None, "Whether `util_gpu` is at least 10 and the idle bit of `reasons` is clear."),
    gpu(
        "process_count",
        None,
        "Processes with compute, graphics or MPS work, each once, by `nvmlDeviceGetComputeRunningProcesses_v3` and its like.",
    ),
    gpu(
        "dead_pids",
        None,
        "Processes of that list that do not exist, twice within two seconds; absent in a container.",
    ),
    gpu("memory_total_mib", None, "Memory in MiB, by `nvmlDeviceGetMemoryInfo_v2`."),
    gpu(
        "mem_used_mib",
        None,
        "Memory in MiB that processes use, without the driver's reserve, by `nvmlDeviceGetMemoryInfo_v2`.",
    ),
    gpu(
        "mem_used_ratio",
        None,
        "Share of the memory that processes use, 0 to 1, by `nvmlDeviceGetMemoryInfo_v2`.",
    ),
    gpu("persistence", None, "1 with persistence mode, by `nvmlDeviceGetPersistenceMode`."),
    gpu(
        "compute_mode",
        None,
        "Compute mode: 0 default, 2 prohibited, 3 exclusive process, by `nvmlDeviceGetComputeMode`.",
    ),
    gpu("accounting", None, "1 with accounting mode, by `nvmlDeviceGetAccountingMode`."),
    gpu("drain_state", None, "1 if the GPU refuses new processes, by `nvmlDeviceQueryDrainState`."),
    gpu("gsp_mode", None, "1 if the GPU system processor runs firmware, by `nvmlDeviceGetGspFirmwareMode`."),
    gpu("gsp_default", None, "1 if it does so by default, by `nvmlDeviceGetGspFirmwareMode`."),
    gpu("gsp_version", None, "Version of that firmware, by `nvmlDeviceGetGspFirmwareVersion`."),
    gpu("mig_current", None, "1 with MIG mode, by `nvmlDeviceGetMigMode`."),
    gpu("mig_pending", None, "1 with MIG mode after the next activation, by `nvmlDeviceGetMigMode`."),
    gpu(
        "mig_layout",
        None,
        "Profile and place of each GPU instance, such as `3g.40gb@4`, by `nvmlDeviceGetGpuInstances`.",
    ),
    gpu(
        "mig_orphans",
        None,
        "GPU instances without a compute instance, twice within two seconds, by `nvmlGpuInstanceGetComputeInstances`.",
    ),
    gpu("gpu_numa_node", None, "NUMA node of the PCI slot, -1 if the firmware tells none, by sysfs."),
];
