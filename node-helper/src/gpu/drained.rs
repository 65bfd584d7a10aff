//! GPUs that the driver hides because they are drained: which of those on the bus they are, and their place among the
//! others.
//!
//! Source: nvml.h, `nvmlDeviceModifyDrainState`: a process that starts after the drain does not see the GPU. So it is
//! found on the PCI bus and asked for by its address.

use std::{fs::File, io::Read as _, path::Path};

use gpufleet_protocol::nvml::{DrainedGpu, Reading, Snapshot};

use super::bus;
use crate::os::roots::Roots;

/// Longest text that is read of the driver's description of a GPU, which has about 500 bytes.
const MOST: u64 = 4096;
/// Longest name or UUID that is shown.
const WORD: usize = 80;

/// Adds the drained GPUs to a reading, and numbers all GPUs as if none was hidden: otherwise `gpus: 1` would mean
/// another GPU after GPU 0 is drained.
///
/// # Errors
/// If the driver does not answer for GPUs that it hides: then nobody knows which number is which GPU.
pub fn complete<E>(
    snapshot: &mut Snapshot,
    roots: &Roots,
    ask: impl FnOnce(Vec<String>) -> Result<Vec<Reading<bool>>, E>,
) -> Result<(), E> {
    let all = bus::addresses(roots);
    let seen = |pci: &&String| snapshot.gpus.iter().any(|gpu| gpu.pci.as_ref() == Ok(*pci));
    let hidden: Vec<String> = all.iter().filter(|pci| !seen(pci)).cloned().collect();
    if hidden.is_empty() {
        return Ok(());
    }
    // One that does not answer is missing, and not drained.
    let states = ask(hidden.clone())?;
    let drained = hidden.into_iter().zip(states).filter(|(_, state)| *state == Ok(true));
    snapshot.drained = drained.map(|(pci, _)| described(roots, pci)).collect();
    if !snapshot.drained.is_empty() {
        number(snapshot, all);
    }
    Ok(())
}

/// Returns what the driver's folder tells of a GPU, which drains do not hide.
pub fn described(roots: &Roots, pci: String) -> DrainedGpu {
    let path = roots.path(format!("/proc/driver/nvidia/gpus/{pci}/information"));
    let text = read(&path).unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key)?.trim().strip_prefix(':'));
        line.unwrap_or_default().trim().chars().filter(|c| !c.is_control()).take(WORD).collect::<String>()
    };
    let name = Some(value("Model")).filter(|name| !name.is_empty());
    DrainedGpu {
        index: 0,
        uuid: Some(value("GPU UUID")).filter(|uuid| uuid.starts_with("GPU-")).unwrap_or_default(),
        name: name.unwrap_or_else(|| "NVIDIA GPU".to_owned()),
        minor: value("Device Minor").parse().ok(),
        pci,
    }
}

/// The driver makes this file under its lock; it is read only after it answered for the same GPU.
fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Numbers all GPUs in the order of the bus, as the driver does. Where it counts otherwise, every visible GPU keeps its
/// number, and the drained ones come last.
fn number(snapshot: &mut Snapshot, all: Vec<String>) {
    let drained: Vec<String> = snapshot.drained.iter().map(|gpu| gpu.pci.clone()).collect();
    let listed: Vec<String> = all.into_iter().filter(|pci| !drained.contains(pci)).collect();
    let mut seen: Vec<String> = snapshot.gpus.iter().filter_map(|gpu| gpu.pci.clone().ok()).collect();
    seen.sort();
    let index = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let explains = |order: &Vec<String>| {
        let holds = |at: u32, pci: Option<&String>| {
            order.iter().position(|one| Some(one) == pci).map(index) == Some(at)
        };
        let in_order = snapshot.gpus.iter().all(|gpu| holds(gpu.index, gpu.pci.as_ref().ok()));
        in_order && snapshot.unreadable.iter().all(|(at, _)| *at < index(order.len()))
    };
    // A GPU that the driver has lost may be on the bus and not in its list.
    let Some(order) = [listed, seen].into_iter().find(explains) else {
        let end = index(snapshot.gpus.len() + snapshot.unreadable.len());
        for (gpu, index) in snapshot.drained.iter_mut().zip(end..) {
            gpu.index = index;
        }
        return;
    };
    let mut whole: Vec<&String> = order.iter().chain(&drained).collect();
    whole.sort();
    let place = |pci: &String| whole.iter().position(|one| *one == pci).map(index);
    let moved = |at: u32| order.get(usize::try_from(at).ok()?).and_then(place);
    for gpu in &mut snapshot.gpus {
        gpu.index = moved(gpu.index).unwrap_or(gpu.index);
    }
    for (at, _) in &mut snapshot.unreadable {
        *at = moved(*at).unwrap_or(*at);
    }
    for gpu in &mut snapshot.drained {
        gpu.index = place(&gpu.pci).unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use gpufleet_protocol::nvml::Code;

    use super::*;
    use crate::deadline::Deadline;
    use crate::gpu::{
        machine::Machine as _,
        sim::{Sim, SimGpu, SimMachine},
    };

    fn node(gpus: u32) -> (tempfile::TempDir, Snapshot) {
        let root = tempfile::tempdir().unwrap();
        for number in 0..gpus {
            let pci = format!("0000:{:02x}:00.0", 0x1b + number);
            let folder = root.path().join("sys/bus/pci/devices").join(&pci);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), "0x10de\n").unwrap();
            fs::write(folder.join("class"), "0x030200\n").unwrap();
            let folder = root.path().join("proc/driver/nvidia/gpus").join(&pci);
            fs::create_dir_all(&folder).unwrap();
            // As driver 580.159.04 writes it.
            let text = format!(
                "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 41\nGPU UUID: \t GPU-{number}\nVideo BIOS: \t \
                 96.00.da.00.0c\nBus Location: \t {pci}\nDevice Minor: \t {number}\nGPU Excluded:\t No\n"
            );
            fs::write(folder.join("information"), text).unwrap();
        }
        let sim = Sim::new((0..gpus).map(|index| SimGpu::new(index, true)).collect());
        let snapshot =
            SimMachine::new(sim).snapshot(&Deadline::after(std::time::Duration::from_secs(5))).unwrap();
        (root, snapshot)
    }

    /// The reading of a process that sees all but these.
    fn without(mut snapshot: Snapshot, hidden: &[usize]) -> Snapshot {
        let mut at = 0;
        snapshot.gpus.retain(|_| {
            at += 1;
            !hidden.contains(&(at - 1))
        });
        for (index, gpu) in snapshot.gpus.iter_mut().enumerate() {
            gpu.index = u32::try_from(index).unwrap();
        }
        snapshot
    }

    fn answered(states: Vec<Reading<bool>>) -> Result<Vec<Reading<bool>>, &'static str> {
        Ok(states)
    }

    #[test]
    fn the_others_keep_their_numbers() {
        let (root, all) = node(4);
        let roots = Roots::below(root.path());
        let mut snapshot = without(all, &[0, 2]);
        complete(&mut snapshot, &roots, |asked| {
            assert_eq!(asked, ["0000:1b:00.0", "0000:1d:00.0"]);
            answered(vec![Ok(true), Ok(true)])
        })
        .unwrap();
        let seen: Vec<(u32, &str)> = snapshot.gpus.iter().map(|gpu| (gpu.index, gpu.uuid.as_str())).collect();
        assert_eq!(seen, [(1, "GPU-1"), (3, "GPU-3")]);
        let drained: Vec<(u32, &str)> =
            snapshot.drained.iter().map(|gpu| (gpu.index, gpu.uuid.as_str())).collect();
        assert_eq!(drained, [(0, "GPU-0"), (2, "GPU-2")]);
        assert_eq!(
            (snapshot.drained[1].minor, snapshot.drained[1].name.as_str()),
            (Some(2), "NVIDIA H100 80GB HBM3")
        );
    }

    #[test]
    fn a_lost_gpu_keeps_its_number_too() {
        let (root, all) = node(4);
        let roots = Roots::below(root.path());
        // GPU 1 is drained; GPU 2 is listed and lost.
        let mut snapshot = without(all.clone(), &[1, 2]);
        snapshot.gpus[1].index = 2;
        snapshot.unreadable = vec![(1, Code::GPU_IS_LOST)];
        complete(&mut snapshot, &roots, |_| answered(vec![Ok(true), Ok(false)])).unwrap();
        let seen: Vec<u32> = snapshot.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!((seen, snapshot.unreadable[0].0, snapshot.drained[0].index), (vec![0, 3], 2, 1));
        // GPU 0 is on the bus and not listed at all.
        let mut snapshot = without(all, &[0, 1]);
        complete(&mut snapshot, &roots, |_| answered(vec![Ok(false), Ok(true)])).unwrap();
        let seen: Vec<u32> = snapshot.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!((seen, snapshot.drained[0].index), (vec![1, 2], 0));
    }

    #[test]
    fn a_gpu_that_is_gone_is_not_drained() {
        let (root, all) = node(2);
        let roots = Roots::below(root.path());
        for answer in [vec![Err(Code::NOT_FOUND)], vec![Ok(false)]] {
            let mut snapshot = without(all.clone(), &[0]);
            complete(&mut snapshot, &roots, |_| answered(answer)).unwrap();
            assert_eq!((snapshot.gpus[0].index, snapshot.drained.len()), (0, 0));
        }
        // Nobody knows whether it is drained, and so which GPU has which number.
        let mut snapshot = without(all.clone(), &[0]);
        assert_eq!(complete(&mut snapshot, &roots, |_| Err("no answer")), Err("no answer"));
        let mut snapshot = all;
        complete::<&str>(&mut snapshot, &roots, |_| panic!("nothing is hidden")).unwrap();
    }

    #[test]
    fn a_driver_that_counts_in_another_order_keeps_its_numbers() {
        let (root, all) = node(3);
        let mut snapshot = without(all, &[1]);
        snapshot.gpus.reverse();
        (snapshot.gpus[0].index, snapshot.gpus[1].index) = (0, 1);
        complete(&mut snapshot, &Roots::below(root.path()), |_| answered(vec![Ok(true)])).unwrap();
        let indexes: Vec<u32> = snapshot.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!((indexes, snapshot.drained[0].index), (vec![0, 1], 2));
    }

    #[test]
    fn what_the_driver_does_not_describe_has_an_address() {
        let root = tempfile::tempdir().unwrap();
        let gpu = described(&Roots::below(root.path()), "0000:1b:00.0".to_owned());
        assert_eq!((gpu.uuid.as_str(), gpu.name.as_str(), gpu.minor), ("", "NVIDIA GPU", None));
    }
}
