//! Which programs of linuxptp steer the clock of the system, and which only serve the one that does.
//!
//! ptp4l keeps the clock of a card. From there phc2sys, or chrony with `refclock PHC`, takes the time for the system;
//! phc2sys may also hand it to chrony (ntpshm). So ptp4l beside another daemon is no conflict, and phc2sys is one only
//! where it steers.

use crate::{
    declare::{Node, Trouble},
    os::files,
};

/// Units of linuxptp, as patterns of `systemctl show`: distributions start one for each interface.
pub const UNITS: [&str; 5] =
    ["ptp4l.service", "ptp4l@*.service", "phc2sys.service", "phc2sys@*.service", "timemaster.service"];
/// Options of phc2sys with a value. Source: phc2sys(8).
const WITH_VALUE: &str = "csdEPISFRNOLMnulfzt";

/// Options of ptp4l with a value. Source: ptp4l(8).
const OF_PTP4L: &str = "fipl";

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

/// What a program was told: options by their letter or long name, then the settings of its file.
struct Told {
    options: Vec<(String, String)>,
    file: Vec<(String, String)>,
}

/// Returns the options of a command line, of which several may share a dash, with their values.
///
/// Each setting of the file is a long option too, and has a value (linuxptp, config.c, `config_long_options`).
fn options(arguments: &[String], with_value: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if let Some(name) = word.strip_prefix("--").filter(|name| !name.is_empty()) {
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (name, words.next().cloned().unwrap_or_default()),
            };
            found.push((name.to_owned(), value));
            continue;
        }
        let Some(letters) = word.strip_prefix('-') else { continue };
        for (at, letter) in letters.char_indices() {
            if !with_value.contains(letter) {
                found.push((letter.to_string(), String::new()));
                continue;
            }
            let rest = letters.get(at + letter.len_utf8()..).unwrap_or_default();
            let value =
                if rest.is_empty() { words.next().cloned().unwrap_or_default() } else { rest.to_owned() };
            found.push((letter.to_string(), value));
            break;
        }
    }
    found
}

/// Returns the settings of all clocks and ports in a file of linuxptp.
fn settings(text: &str) -> Vec<(String, String)> {
    let (mut is_global, mut found) = (false, Vec::new());
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if line.starts_with('[') {
            is_global = line.starts_with("[global]");
        } else if let Some((name, value)) = line.split_once(char::is_whitespace).filter(|_| is_global) {
            found.push((name.to_owned(), value.trim().to_owned()));
        }
    }
    found
}

impl Told {
    /// # Errors
    /// If the file that the program was given cannot be read.
    fn read(node: &Node<'_>, arguments: &[String], with_value: &str) -> Result<Self, Trouble> {
        let mut told = Self { options: options(arguments, with_value), file: Vec::new() };
        let Some(path) = told.option(&["f"]).map(str::to_owned) else { return Ok(told) };
        let unread = || Trouble::io(format!("`-f {path}` of a running program of linuxptp cannot be read"));
        let bytes = match path.starts_with('/') {
            true => node.world.read(&node.roots.path(&path))?.ok_or_else(unread)?,
            false => return Err(unread()),
        };
        told.file = settings(&String::from_utf8_lossy(&bytes));
        Ok(told)
    }

    /// Returns the value of the last option of these names.
    fn option(&self, names: &[&str]) -> Option<&str> {
        let found = self.options.iter().rev().find(|(own, _)| names.contains(&own.as_str()));
        found.map(|(_, value)| value.as_str())
    }

    fn has(&self, letter: &str) -> bool {
        self.option(&[letter]).is_some()
    }

    /// Returns a setting; what the command line says beats the file (ptp4l(8)).
    fn setting(&self, name: &str) -> Option<&str> {
        let of_file = || self.file.iter().rev().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        self.option(&[name]).or_else(of_file)
    }

    /// Whether its servo only tells another daemon; the option for it has these names.
    fn tells_only(&self, names: &[&str]) -> bool {
        let servo = self.option(names).or_else(|| self.setting("clock_servo"));
        matches!(servo, Some("ntpshm" | "refclock_sock"))
    }

    /// Source: phc2sys(8): `-a` alone leaves the system's clock alone, `-r` takes it in; the servos `ntpshm` and
    /// `refclock_sock` only tell another daemon.
    fn phc2sys(&self) -> Part {
        let elsewhere = self.option(&["c"]).is_some_and(|clock| clock != "CLOCK_REALTIME");
        match self.tells_only(&["E", "clock_servo"]) || elsewhere || self.has("a") && !self.has("r") {
            true => Part::Serves,
            false => Part::Steers,
        }
    }

    /// Source: ptp4l(8); linuxptp, clock.c, `clock_create`: without time stamps of a card's clock it steers CLOCK_REALTIME.
    /// There `-E` is of the delay mechanism.
    fn ptp4l(&self) -> Part {
        let stamps = self.options.iter().rev().find_map(|(name, value)| match name.as_str() {
            "S" => Some("software"),
            "L" => Some("legacy"),
            "H" => Some("hardware"),
            "time_stamping" => Some(value.as_str()),
            _ => None,
        });
        let of_system =
            matches!(stamps.or_else(|| self.setting("time_stamping")), Some("software" | "legacy"));
        match of_system && !self.tells_only(&["clock_servo"]) && self.setting("free_running") != Some("1") {
            true => Part::Steers,
            false => Part::Serves,
        }
    }
}

/// Returns what a unit of linuxptp does; none for another unit.
///
/// # Errors
/// If its file cannot be read.
pub fn part(node: &Node<'_>, unit: &str, pid: u32) -> Result<Option<Part>, Trouble> {
    let told = |with_value| Told::read(node, &arguments(node, pid), with_value);
    let name = unit.strip_suffix(".service").and_then(|name| name.split('@').next());
    Ok(match name {
        Some("ptp4l") => Some(told(OF_PTP4L)?.ptp4l()),
        Some("phc2sys") => Some(told(WITH_VALUE)?.phc2sys()),
        // It runs chronyd or ntpd, ptp4l and phc2sys itself (timemaster(8)).
        Some("timemaster") => Some(Part::Steers),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str, with_value: &str, file: &str) -> Told {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Told { options: options(&words, with_value), file: settings(file) }
    }

    #[test]
    fn ptp4l_steers_without_a_clock_of_a_card() {
        let software = "[global]\n# x\ntime_stamping\t\tsoftware\n[eth0]\ntime_stamping hardware\n";
        for (line, file) in [
            ("-S -i eth0", ""),
            ("-mS", ""),
            ("-i eth0 --time_stamping software", ""),
            ("-i eth0 --time_stamping=legacy", ""),
            ("-f /etc/ptp4l.conf -i eth0", software),
        ] {
            assert_eq!(of(line, OF_PTP4L, file).ptp4l(), Part::Steers, "{line}");
        }
        for (line, file) in [
            ("-i eth0", ""),
            ("-i S", ""),
            ("-S -H", ""),
            ("-H -f x", software),
            ("-S --free_running 1", ""),
            ("-S --clock_servo=ntpshm", ""),
            ("-i eth0", "time_stamping software\n"),
        ] {
            assert_eq!(of(line, OF_PTP4L, file).ptp4l(), Part::Serves, "{line}");
        }
    }

    #[test]
    fn a_servo_in_the_file_counts_where_no_option_says_otherwise() {
        let file = "[global]\nclock_servo ntpshm\n";
        assert_eq!(of("-ar -f x", WITH_VALUE, file).phc2sys(), Part::Serves);
        assert_eq!(of("-ar -f x -E pi", WITH_VALUE, file).phc2sys(), Part::Steers);
    }

    #[test]
    fn phc2sys_steers_or_serves() {
        let of = |line: &str| of(line, WITH_VALUE, "").phc2sys();
        for line in [
            "-a -r",
            "--clock_servo=pi -ar",
            "-arr -n 24",
            "-s eth0 -w",
            "-s eth0 -c CLOCK_REALTIME -O 0",
            "-w -s eth0 -E linreg",
        ] {
            assert_eq!(of(line), Part::Steers, "{line}");
        }
        for line in [
            "-a",
            "-s eth0 -c eth1",
            "-a -r -E ntpshm -M 0",
            "-arEntpshm",
            "-ar --clock_servo=ntpshm",
            "-ar --clock_servo refclock_sock",
            "-s CLOCK_REALTIME -c eth0",
        ] {
            assert_eq!(of(line), Part::Serves, "{line}");
        }
    }
}
