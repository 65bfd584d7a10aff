//! One reading of what the checks of an audit need: the snapshot, and [`HealthReading`] for each of its GPUs.
//!
//! Only reads, and only what is cheap unless asked for more: `deep` decides. Never reads
//! `nvmlDeviceGetNvLinkErrorCounter`: it takes 3 ms for each link, and two of its counters grow on healthy links.

use std::time::Duration;

use gpufleet_protocol::nvml::{
    Board, Code, Deep, Fan, GpuReading, Health, HealthReading, Heat, Lately, LinkDetail, MemoryHealth, Modes,
    NvLinks, Pcie, Reading, Slowed, Snapshot, Work,
};

use crate::{
    nvml::{
        CLOCK_SM, Device, Errors, Nvml, Retired, Since,
        fields::{Field, Number},
    },
    snapshot::{self, MOST_LINKS, Profiles},
};

/// A code that may not come again is asked for again after this time.
const AGAIN: Duration = Duration::from_secs(1);
const MOST_FANS: u32 = 16;
/// `NVML_DEVICE_ARCH_BLACKWELL`.
const BLACKWELL: u32 = 10;

/// Fields of nvml.h, `NVML_FI_DEV_…`.
mod id {
    pub const PERF_POLICY_POWER: u32 = 74;
    pub const MEMORY_TEMP: u32 = 82;
    pub const NVLINK_SPEED: u32 = 164;
    pub const NVLINK_REPLAYS: u32 = 161;
    pub const NVLINK_RECOVERIES: u32 = 162;
    pub const PCIE_L0_TO_RECOVERY: u32 = 169;
    pub const C2C_LINK_COUNT: u32 = 170;
    pub const C2C_LINK_STATUS: u32 = 171;
    pub const POWER_AVERAGE: u32 = 185;
    pub const POWER_LIMIT: u32 = 190;
    pub const TLIMIT_SLOWDOWN: u32 = 194;
    pub const EFFECTIVE_BER: u32 = 220;
    pub const SYMBOL_BER: u32 = 222;
}

/// The part of the board that a power field is about: `NVML_POWER_SCOPE_MODULE`.
const MODULE: u32 = 1;

/// What is read beside tier 1.
#[derive(Clone, Copy, Debug)]
struct Tiers {
    board: bool,
    deep: bool,
    /// Whether [`Lately`] is read.
    lately: bool,
    /// First of the three fields of nanoseconds with slowed clocks: software thermal, hardware thermal, power brake.
    slowed: u32,
}

type Pair = (GpuReading, HealthReading);

pub fn read(nvml: &Nvml, deep: bool) -> Health {
    reading(nvml, deep, false)
}

pub fn lately(nvml: &Nvml) -> Health {
    reading(nvml, false, true)
}

fn reading(nvml: &Nvml, deep: bool, lately: bool) -> Health {
    let driver_version = nvml.driver_version();
    let slowed = slowed_fields(driver_version.as_deref().unwrap_or_default());
    nvml.take_doubt();
    let node = |nvml: &Nvml| {
        (nvml.device_count(), nvml.excluded_count(), nvml.confidential(), nvml.confidential_ready())
    };
    let (mut count, mut excluded, mut confidential, mut confidential_ready) = node(nvml);
    if nvml.take_doubt() {
        std::thread::sleep(AGAIN);
        (count, excluded, confidential, confidential_ready) = node(nvml);
        nvml.take_doubt();
    }
    let known = count.unwrap_or(0);
    // It takes 11 ms of CPU for each GPU: little for an audit, much for who asks every second.
    let tiers = Tiers { board: !lately, deep, lately, slowed };
    let mut seen: Vec<(Reading<Pair>, bool)> = (0..known)
        .map(|index| {
            let pair = gpu(nvml, index, tiers);
            (pair, nvml.take_doubt())
        })
        .collect();
    if seen.iter().any(|(_, doubt)| *doubt) {
        std::thread::sleep(AGAIN);
        for (index, (pair, doubt)) in (0..known).zip(&mut seen) {
            if *doubt {
                *pair = gpu(nvml, index, tiers);
            }
        }
    }
    let (mut gpus, mut readings, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (pair, _)) in (0..known).zip(seen) {
        match pair {
            Ok((gpu, reading)) => {
                gpus.push(gpu);
                readings.push(reading);
            }
            Err(code) => unreadable.push((index, code)),
        }
    }
    if let Err(code) = count {
        unreadable.push((0, code));
    }
    let snapshot = Snapshot {
        driver_version,
        nvml_version: nvml.nvml_version(),
        cuda_version: nvml.cuda_version(),
        confidential,
        confidential_ready,
        gpus,
        unreadable,
        drained: Vec::new(),
    };
    Health { snapshot, count, excluded, gpus: readings }
}

/// Returns the first field of nanoseconds with slowed clocks, whose numbers changed in driver 580.82.
fn slowed_fields(driver: &str) -> u32 {
    let mut parts = driver.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= (580, 82) { 269 } else { 251 }
}

fn gpu(nvml: &Nvml, index: u32, tiers: Tiers) -> Reading<Pair> {
    let (device, uuid) = snapshot::found(nvml, index)?;
    let reading = snapshot::gpu(nvml, index, device, uuid, Profiles::WhileMigIsOn);
    let links = links(nvml, device);
    let health = HealthReading {
        memory: memory(nvml, device),
        modes: modes(nvml, device),
        fabric: nvml.fabric(device),
        nvlinks: links,
        work: work(nvml, device),
        board: tiers.board.then(|| board(nvml, device, tiers.slowed)),
        deep: tiers.deep.then(|| Deep {
            inforom: nvml.validate_inforom(device),
            links: links.and_then(|links| detail(nvml, device, links.count, &reading)),
        }),
        lately: tiers
            .lately
            .then(|| Lately { power_draw_mw: nvml.power_draw(device), samples: nvml.use_samples(device) }),
    };
    Ok((reading, health))
}

fn memory(nvml: &Nvml, device: Device) -> MemoryHealth {
    MemoryHealth {
        ecc_default: nvml.ecc_default(device),
        corrected_sram: nvml.sram_errors(device, Errors::Corrected),
        corrected_total: nvml.ecc_errors(device, Errors::Corrected, Since::Made),
        uncorrected_total: nvml.ecc_errors(device, Errors::Uncorrected, Since::Made),
        sram: nvml.sram_status(device),
        row_banks: nvml.row_banks(device),
        retired_single: nvml
            .retired_pages(device, Retired::SingleBitErrors)
            .map(|pages| u32::try_from(pages.len()).unwrap_or(u32::MAX)),
        retired_double: nvml.retired_pages(device, Retired::DoubleBitError),
        retired_pending: nvml.retired_pending(device),
        repair: nvml.repair(device),
        unrepairable: nvml.unrepairable(device),
    }
}

fn modes(nvml: &Nvml, device: Device) -> Modes {
    Modes {
        gsp: nvml.gsp(device),
        gsp_version: nvml.gsp_version(device),
        inforom: nvml.inforom(device),
        drain: nvml.drain(device),
        performance_state: nvml.performance_state(device),
        clock_reasons: nvml.clock_reasons(device),
    }
}

fn work(nvml: &Nvml, device: Device) -> Work {
    let utilization = nvml.utilization(device);
    Work {
        gpu_percent: utilization.map(|(gpu, _)| gpu),
        memory_percent: utilization.map(|(_, memory)| memory),
        sm_clock_mhz: nvml.clock(device, CLOCK_SM),
        memory: nvml.memory_use(device),
        mps_pids: nvml.mps_pids(device),
    }
}

/// Counts links. A GPU without NVLink refuses the first one; past the last link the argument is invalid.
fn links(nvml: &Nvml, device: Device) -> Reading<NvLinks> {
    let mut links = NvLinks { count: 0, active: 0 };
    for link in 0..MOST_LINKS {
        match nvml.nvlink_active(device, link) {
            Ok(up) => {
                links.count += 1;
                links.active += u32::from(up);
            }
            Err(Code::NOT_SUPPORTED) if link > 0 => {}
            Err(Code::INVALID_ARGUMENT) if link > 0 => break,
            Err(Code::NOT_SUPPORTED | Code::INVALID_ARGUMENT) => return Err(Code::NOT_SUPPORTED),
            Err(code) => return Err(code),
        }
    }
    Ok(links)
}

/// Takes the answers of a batch in the order of its questions.
struct Answers(std::vec::IntoIter<Reading<Number>>);

impl Answers {
    fn unsigned(&mut self) -> Reading<u64> {
        self.0.next().unwrap_or(Err(Code::UNKNOWN))?.unsigned()
    }

    fn signed(&mut self) -> Reading<i32> {
        self.0.next().unwrap_or(Err(Code::UNKNOWN))?.signed()
    }
}

fn board(nvml: &Nvml, device: Device, slowed: u32) -> Board {
    // One batch, because each call costs more than the values of it.
    let asked = [
        Field::of(id::TLIMIT_SLOWDOWN),
        Field::of(id::MEMORY_TEMP),
        Field::of(id::PERF_POLICY_POWER),
        Field::of(slowed),
        Field::of(slowed + 1),
        Field::of(slowed + 2),
        Field::of(id::PCIE_L0_TO_RECOVERY),
        Field::within(id::POWER_AVERAGE, MODULE),
        Field::within(id::POWER_LIMIT, MODULE),
    ];
    let mut answers = Answers(nvml.fields(device, &asked).into_iter());
    let heat = Heat {
        margin: nvml.margin(device),
        slowdown_margin: answers.signed(),
        memory: answers.unsigned().and_then(|value| u32::try_from(value).map_err(|_| Code::UNKNOWN)),
        memory_max: nvml.memory_max_temperature(device),
    };
    let slowed = Slowed {
        software_power: answers.unsigned(),
        software_thermal: answers.unsigned(),
        hardware_thermal: answers.unsigned(),
        power_brake: answers.unsigned(),
    };
    let pcie = Pcie {
        generation_max: nvml.pcie_generation_max(device),
        generation_gpu: nvml.pcie_generation_gpu(device),
        width_max: nvml.pcie_width_max(device),
        replays: nvml.pcie_replays(device),
        recoveries: answers.unsigned(),
    };
    Board {
        power_draw_mw: nvml.power_draw(device),
        module_draw_mw: answers.unsigned(),
        module_limit_mw: answers.unsigned(),
        heat,
        slowed,
        pcie,
        fans: fans(nvml, device),
        c2c: c2c(nvml, device),
    }
}

fn fans(nvml: &Nvml, device: Device) -> Reading<Vec<Fan>> {
    let count = nvml.fan_count(device)?.min(MOST_FANS);
    let fan = |fan| Fan { speed: nvml.fan_speed(device, fan), target: nvml.fan_target(device, fan) };
    Ok((0..count).map(fan).collect())
}

fn c2c(nvml: &Nvml, device: Device) -> Reading<NvLinks> {
    if !nvml.c2c(device)? {
        return Err(Code::NOT_SUPPORTED);
    }
    let count = nvml.field(device, Field::of(id::C2C_LINK_COUNT))?.unsigned()?;
    let count = u32::try_from(count).unwrap_or(u32::MAX).min(MOST_LINKS);
    let asked: Vec<Field> = (0..count).map(|link| Field::within(id::C2C_LINK_STATUS, link)).collect();
    let mut active = 0;
    for status in nvml.fields(device, &asked) {
        active += u32::from(status?.unsigned()? == 1);
    }
    Ok(NvLinks { count, active })
}

fn detail(nvml: &Nvml, device: Device, count: u32, gpu: &GpuReading) -> Reading<LinkDetail> {
    if count == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let every = |id: u32| (0..count).map(move |link| Field::within(id, link));
    let asked: Vec<Field> =
        [id::NVLINK_SPEED, id::NVLINK_REPLAYS, id::NVLINK_RECOVERIES].into_iter().flat_map(every).collect();
    let answers = nvml.fields(device, &asked);
    let mut parts = answers.chunks(count as usize).map(numbers);
    let mut next = || parts.next().unwrap_or(Err(Code::UNKNOWN));
    let (speeds, replays, recoveries) = (next(), next(), next());
    // Drivers answer earlier GPUs with numbers that mean nothing.
    let rate = |id: u32| match gpu.architecture {
        Ok(architecture) if architecture >= BLACKWELL => {
            let asked: Vec<Field> = every(id).collect();
            Ok(numbers(&nvml.fields(device, &asked))?.into_iter().map(error_rate).fold(0.0, f64::max))
        }
        _ => Err(Code::NOT_SUPPORTED),
    };
    Ok(LinkDetail {
        speeds: speeds.and_then(|all| {
            all.iter().min().zip(all.iter().max()).map(|(low, high)| (*low, *high)).ok_or(Code::UNKNOWN)
        }),
        replays: replays.map(|all| all.iter().sum()),
        recoveries: recoveries.map(|all| all.iter().sum()),
        effective_error_rate: rate(id::EFFECTIVE_BER),
        symbol_error_rate: rate(id::SYMBOL_BER),
    })
}

/// Returns the numbers of all links, or the first code that is none.
fn numbers(answers: &[Reading<Number>]) -> Reading<Vec<u64>> {
    answers.iter().map(|answer| answer.and_then(Number::unsigned)).collect()
}

/// Returns a bit error rate, packed as mantissa and negative exponent of ten; the highest of both is zero.
///
/// Source: nvml.h, `NVML_NVLINK_ERROR_COUNTER_BER_GET`.
fn error_rate(packed: u64) -> f64 {
    let (mantissa, exponent) = ((packed >> 8) & 0xf, packed & 0xff);
    match (mantissa, exponent) {
        (15, 255) => 0.0,
        (mantissa, exponent) => mantissa as f64 * 10_f64.powi(-(exponent as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_slowed_clocks_depend_on_the_driver() {
        for (driver, first) in [
            ("535.104.05", 251),
            ("580.65.06", 251),
            ("580.82.07", 269),
            ("580.159.04", 269),
            ("590.12", 269),
            ("", 251),
        ] {
            assert_eq!(slowed_fields(driver), first, "{driver}");
        }
    }

    #[test]
    fn error_rates_are_unpacked() {
        assert_eq!(error_rate(0xf << 8 | 0xff), 0.0);
        assert!((error_rate(5 << 8 | 13) - 5e-13).abs() < 1e-20);
        assert!(error_rate(2 << 8 | 11) > 1e-12);
    }
}
