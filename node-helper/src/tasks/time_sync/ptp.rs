//! Which programs of linuxptp steer the clock of the system, and which only serve the one that does.
//!
//! ptp4l keeps the clock of a card. From there phc2sys, or chrony with `refclock PHC`, takes the time for the system;
//! phc2sys may also hand it to chrony (ntpshm). So ptp4l beside another daemon is no conflict, and phc2sys is one only
//! where it steers.

use crate::{declare::Node, os::files};

/// Units of linuxptp, as patterns of `systemctl show`: distributions start one for each interface.
pub const UNITS: [&str; 5] =
    ["ptp4l.service", "ptp4l@*.service", "phc2sys.service", "phc2sys@*.service", "timemaster.service"];
/// Options of phc2sys with a value. Source: phc2sys(8).
const WITH_VALUE: &str = "csdEPISFRNOLMnulfzt";

/// What a program does with the clock of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Steers,
    /// It keeps the clock of a card, or hands its time to another daemon.
    Serves,
}

/// Returns the arguments of a process; none if it has ended.
pub fn arguments(node: &Node<'_>, pid: u32) -> Vec<String> {
    let bytes = files::read_bounded(&node.roots.proc(&format!("{pid}/cmdline")), 1 << 16).ok().flatten();
    let bytes = bytes.unwrap_or_default();
    bytes.split(|byte| *byte == 0).skip(1).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Returns the options of a command line, of which several may share a dash, with their values.
fn options(arguments: &[String]) -> Vec<(char, String)> {
    let mut found = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else { continue };
        for (at, letter) in letters.char_indices() {
            if !WITH_VALUE.contains(letter) {
                found.push((letter, String::new()));
                continue;
            }
            let rest = letters.get(at + letter.len_utf8()..).unwrap_or_default();
            let value =
                if rest.is_empty() { words.next().cloned().unwrap_or_default() } else { rest.to_owned() };
            found.push((letter, value));
            break;
        }
    }
    found
}

/// Source: phc2sys(8): `-a` alone leaves the system's clock alone, `-r` takes it in; `-E ntpshm` and `refclock_sock` only
/// tell another daemon.
fn phc2sys(arguments: &[String]) -> Part {
    let all = options(arguments);
    let has = |letter: char| all.iter().any(|(own, _)| *own == letter);
    let value =
        |letter: char| all.iter().rev().find(|(own, _)| *own == letter).map(|(_, value)| value.as_str());
    let tells_only = matches!(value('E'), Some("ntpshm" | "refclock_sock"));
    let elsewhere = value('c').is_some_and(|clock| clock != "CLOCK_REALTIME");
    match tells_only || elsewhere || has('a') && !has('r') {
        true => Part::Serves,
        false => Part::Steers,
    }
}

/// Returns what a unit of linuxptp does; none for another unit.
pub fn part(node: &Node<'_>, unit: &str, pid: u32) -> Option<Part> {
    let name = unit.strip_suffix(".service")?.split('@').next()?;
    match name {
        "ptp4l" => Some(Part::Serves),
        "phc2sys" => Some(phc2sys(&arguments(node, pid))),
        // It runs chronyd or ntpd, ptp4l and phc2sys itself (timemaster(8)).
        "timemaster" => Some(Part::Steers),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phc2sys_steers_or_serves() {
        let of = |line: &str| phc2sys(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in
            ["-a -r", "-arr -n 24", "-s eth0 -w", "-s eth0 -c CLOCK_REALTIME -O 0", "-w -s eth0 -E linreg"]
        {
            assert_eq!(of(line), Part::Steers, "{line}");
        }
        for line in
            ["-a", "-s eth0 -c eth1", "-a -r -E ntpshm -M 0", "-arEntpshm", "-s CLOCK_REALTIME -c eth0"]
        {
            assert_eq!(of(line), Part::Serves, "{line}");
        }
    }
}
