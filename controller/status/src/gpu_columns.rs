//! The columns of `gpufleet status gpu`.

use gpufleet_protocol::{signal::Signal, status::Holder};

use crate::{
    column::{Cell, Column, Key, Shown, Tone},
    row::Row,
    state::{self, State, free_slices},
};

/// Reasons for low clocks and their words. Idle (0x1) and the display (0x100) are none to tell.
///
/// Source: nvml.h, `nvmlClocksEventReasons`.
const REASONS: [(u64, &str, Tone); 7] = [
    (0x80, "power-brake", Tone::Bad),
    (0x40, "hw-thermal", Tone::Bad),
    (0x8, "hw-slowdown", Tone::Bad),
    (0x20, "thermal", Tone::Warning),
    (0x4, "power-cap", Tone::Plain),
    (0x2, "app-clocks", Tone::Plain),
    (0x10, "sync-boost", Tone::Plain),
];

/// Columns in their usual order.
pub const GPU_COLUMNS: &[Column<Row>] = &[
    Column {
        name: "node",
        title: "NODE",
        help: "Name in the inventory.",
        right: false,
        shown: Shown::Always,
        drop: 0,
        least: 8,
        most: 40,
        cell: |row| Cell::plain(&*row.node),
        key: |row| Key::Text(row.node.to_string()),
    },
    Column {
        name: "groups",
        title: "GROUPS",
        help: "Groups of the inventory that the node is in.",
        right: false,
        shown: Shown::Wide,
        drop: 96,
        least: 8,
        most: 30,
        cell: |row| if row.groups.is_empty() { Cell::none() } else { Cell::plain(row.groups.join(",")) },
        key: |row| Key::Text(row.groups.join(",")),
    },
    Column {
        name: "gpu",
        title: "GPU",
        help: "Index on its node.",
        right: true,
        shown: Shown::Always,
        drop: 0,
        least: 3,
        most: 6,
        cell: |row| row.now.as_ref().map_or_else(Cell::none, |now| Cell::plain(now.index.to_string())),
        key: |row| row.now.as_ref().map_or(Key::Nothing, |now| Key::Text(now.index.to_string())),
    },
    Column {
        name: "model",
        title: "MODEL",
        help: "Product name.",
        right: false,
        shown: Shown::Always,
        drop: 80,
        least: 8,
        most: 28,
        cell: |row| text(row, "name", |name| name.strip_prefix("NVIDIA ").unwrap_or(name).to_owned()),
        key: |row| by_text(row, "name"),
    },
    Column {
        name: "driver",
        title: "DRIVER",
        help: "Version of the driver; shown unasked only where nodes differ.",
        right: false,
        shown: Shown::If(|rows| {
            let mut versions = rows.iter().filter_map(|row| row.driver.as_deref());
            versions.next().is_some_and(|first| versions.any(|other| other != first))
        }),
        drop: 90,
        least: 6,
        most: 16,
        cell: |row| row.driver.as_deref().map_or_else(|| missing(row), Cell::plain),
        key: |row| row.driver.clone().map_or(Key::Nothing, Key::Text),
    },
    Column {
        name: "mig",
        title: "MIG",
        help: "MIG instances, free of all: `5/7 1g.10gb`; shown unasked only where MIG is on.",
        right: false,
        shown: Shown::If(|rows| {
            rows.iter().any(|row| row.number("mig_current").is_some_and(|mode| mode > 0.0))
        }),
        drop: 70,
        least: 8,
        most: 30,
        cell: mig,
        key: |row| match row.now.as_ref().filter(|now| !now.instances.is_empty()) {
            Some(now) => Key::Number(now.instances.len() as f64),
            None => Key::Nothing,
        },
    },
    Column {
        name: "use",
        title: "USE%",
        help: "How busy it was over the window, in percent; of a GPU that nothing holds, in the driver's last period.",
        right: true,
        shown: Shown::Always,
        drop: 0,
        least: 4,
        most: 5,
        cell: usage,
        key: |row| match row.now.as_ref().and_then(state::busy) {
            Some(busy) => Key::Number(busy.permille.into()),
            None => Key::Nothing,
        },
    },
    Column {
        name: "peak",
        title: "PEAK%",
        help: "Its busiest moment in the window, in percent.",
        right: true,
        shown: Shown::Wide,
        drop: 94,
        least: 5,
        most: 5,
        cell: |row| match row.now.as_ref().and_then(state::busy) {
            Some(recent) => Cell::plain(recent.peak.to_string()),
            None => Cell::none(),
        },
        key: |row| match row.now.as_ref().and_then(state::busy) {
            Some(recent) => Key::Number(recent.peak.into()),
            None => Key::Nothing,
        },
    },
    Column {
        name: "window",
        title: "WINDOW",
        help: "Seconds that the use is of, within the life of what holds it; the driver keeps 14 on an H100.",
        right: true,
        shown: Shown::Wide,
        drop: 95,
        least: 4,
        most: 6,
        cell: |row| match row.now.as_ref().and_then(state::busy) {
            Some(recent) if recent.span_ms == 0 => Cell::plain("now"),
            Some(recent) => Cell::plain(format!("{}s", recent.span_ms.saturating_add(500) / 1000)),
            None => Cell::none(),
        },
        key: |row| match row.now.as_ref().and_then(state::busy) {
            Some(recent) => Key::Number(recent.span_ms.into()),
            None => Key::Nothing,
        },
    },
    Column {
        name: "mem",
        title: "MEM GiB",
        help: "Memory used and in all, in GiB.",
        right: true,
        shown: Shown::Always,
        drop: 20,
        least: 7,
        most: 13,
        cell: memory,
        key: |row| by_number(row, "mem_used_mib"),
    },
    Column {
        name: "temp",
        title: "TEMP",
        help: "Temperature in degrees Celsius.",
        right: true,
        shown: Shown::Always,
        drop: 40,
        least: 4,
        most: 5,
        cell: |row| number(row, "temp_c", Tone::Plain),
        key: |row| by_number(row, "temp_c"),
    },
    Column {
        name: "mem-temp",
        title: "MTEMP",
        help: "Temperature of the memory in degrees Celsius.",
        right: true,
        shown: Shown::Wide,
        drop: 93,
        least: 5,
        most: 5,
        cell: |row| number(row, "mem_temp_c", Tone::Plain),
        key: |row| by_number(row, "mem_temp_c"),
    },
    Column {
        name: "power",
        title: "POWER W",
        help: "Power and its limit, in watts.",
        right: true,
        shown: Shown::Always,
        drop: 35,
        least: 7,
        most: 11,
        cell: power,
        key: |row| by_number(row, "power_draw_w"),
    },
    Column {
        name: "clock",
        title: "SM MHz",
        help: "Clock of the multiprocessors, in MHz.",
        right: true,
        shown: Shown::Wide,
        drop: 92,
        least: 6,
        most: 6,
        cell: |row| number(row, "sm_mhz", Tone::Plain),
        key: |row| by_number(row, "sm_mhz"),
    },
    Column {
        name: "ecc",
        title: "ECC",
        help: "Uncorrected memory errors since the driver was loaded or the GPU was reset.",
        right: true,
        shown: Shown::Always,
        drop: 60,
        least: 3,
        most: 8,
        cell: |row| number(row, "ecc_unc_vol", Tone::Bad),
        key: |row| by_number(row, "ecc_unc_vol"),
    },
    Column {
        name: "ecc-cor",
        title: "ECC-COR",
        help: "Corrected memory errors since the driver was loaded or the GPU was reset.",
        right: true,
        shown: Shown::Wide,
        drop: 91,
        least: 7,
        most: 10,
        cell: |row| number(row, "ecc_cor_vol", Tone::Plain),
        key: |row| by_number(row, "ecc_cor_vol"),
    },
    Column {
        name: "throttle",
        title: "THROTTLE",
        help: "Why clocks are low: power-cap, thermal, hw-thermal, hw-slowdown, power-brake, app-clocks, sync-boost.",
        right: false,
        shown: Shown::Always,
        drop: 50,
        least: 8,
        most: 32,
        cell: throttle,
        key: |row| match (throttle(row), row.signal("reasons")) {
            (cell, Some(Signal::Known(_))) if cell.text != "-" => Key::Text(cell.text),
            _ => Key::Nothing,
        },
    },
    Column {
        name: "holder",
        title: "HELD BY",
        help: "Job, pod or unit, user and program of what holds it, and how many more there are.",
        right: false,
        shown: Shown::Always,
        drop: 30,
        least: 14,
        most: 44,
        cell: holder,
        key: |row| match row.now.as_ref().is_some_and(|now| !now.holders.is_empty()) {
            true => Key::Text(holder(row).text),
            false => Key::Nothing,
        },
    },
    Column {
        name: "procs",
        title: "PROCS",
        help: "Number of processes that hold it.",
        right: true,
        shown: Shown::Wide,
        drop: 89,
        least: 5,
        most: 6,
        cell: |row| match &row.now {
            Some(now) => Cell::plain((now.holders.len() + now.more_holders as usize).to_string()),
            None => Cell::none(),
        },
        key: |row| match &row.now {
            Some(now) => Key::Number(now.holders.len() as f64 + f64::from(now.more_holders)),
            None => Key::Nothing,
        },
    },
    Column {
        name: "pci",
        title: "PCI",
        help: "PCI address.",
        right: false,
        shown: Shown::Wide,
        drop: 97,
        least: 12,
        most: 16,
        cell: |row| text(row, "pci", str::to_owned),
        key: |row| by_text(row, "pci"),
    },
    Column {
        name: "uuid",
        title: "UUID",
        help: "UUID of the board.",
        right: false,
        shown: Shown::Wide,
        drop: 98,
        least: 12,
        most: 44,
        cell: |row| row.now.as_ref().map_or_else(Cell::none, |now| Cell::plain(&now.signals.id)),
        key: |row| row.now.as_ref().map_or(Key::Nothing, |now| Key::Text(now.signals.id.clone())),
    },
    Column {
        name: "why",
        title: "WHY",
        help: "Why it is in its state, where that needs words.",
        right: false,
        shown: Shown::Wide,
        drop: 88,
        least: 12,
        most: 50,
        cell: |row| if row.why.is_empty() { Cell::none() } else { Cell::plain(&row.why) },
        key: |row| if row.why.is_empty() { Key::Nothing } else { Key::Text(row.why.clone()) },
    },
    Column {
        name: "state",
        title: "STATE",
        help: "free, part-free, busy, starved, idle-held, no-slices, drain, degraded, lost, unknown, no-gpu.",
        right: false,
        shown: Shown::Always,
        drop: 0,
        least: 9,
        most: 9,
        cell: |row| Cell::toned(row.state.word(), tone(row.state)),
        key: |row| by_state(row.state),
    },
];

/// Worst first.
pub fn by_state(state: State) -> Key {
    let place = State::ALL.iter().position(|known| *known == state).unwrap_or(0);
    Key::Number(-(place as f64))
}

pub fn tone(state: State) -> Tone {
    match state {
        State::Lost | State::Degraded => Tone::Bad,
        State::Unknown | State::IdleHeld | State::Starved | State::Drain | State::NoSlices => Tone::Warning,
        State::Busy => Tone::Busy,
        State::Free | State::PartFree => Tone::Good,
        State::NoGpu => Tone::Muted,
    }
}

/// A value that is not known: `-` if there is none, `?` if it could not be read.
fn missing(row: &Row) -> Cell {
    if row.state == State::Unknown { Cell::unknown() } else { Cell::none() }
}

fn of(row: &Row, name: &str) -> Cell {
    match row.signal(name) {
        Some(Signal::Unknown(_)) => Cell::unknown(),
        Some(_) => Cell::none(),
        None => missing(row),
    }
}

fn text(row: &Row, name: &str, show: impl Fn(&str) -> String) -> Cell {
    row.text(name).map_or_else(|| of(row, name), |text| Cell::plain(show(text)))
}

/// A count or a measure; `tone` if it is not zero.
fn number(row: &Row, name: &str, tone: Tone) -> Cell {
    match row.number(name) {
        Some(number) => Cell::toned(format!("{number:.0}"), if number == 0.0 { Tone::Plain } else { tone }),
        None => of(row, name),
    }
}

fn by_number(row: &Row, name: &str) -> Key {
    row.number(name).map_or(Key::Nothing, Key::Number)
}

fn by_text(row: &Row, name: &str) -> Key {
    row.text(name).map_or(Key::Nothing, |text| Key::Text(text.to_owned()))
}

fn usage(row: &Row) -> Cell {
    let Some(busy) = row.now.as_ref().and_then(state::busy) else { return of(row, "util_gpu") };
    let tone = match row.state {
        State::IdleHeld | State::Starved => Tone::Warning,
        _ if busy.permille == 0 => Tone::Muted,
        _ => Tone::Plain,
    };
    Cell::toned(format!("{:.0}", f64::from(busy.permille) / 10.0), tone)
}

fn memory(row: &Row) -> Cell {
    let gib = |name: &str| row.number(name).map(|mib| mib / 1024.0);
    match (gib("mem_used_mib"), gib("memory_total_mib")) {
        (Some(used), Some(total)) => Cell::plain(format!("{used:.1}/{total:.0}")),
        (Some(used), None) => Cell::plain(format!("{used:.1}")),
        (None, _) => of(row, "mem_used_mib"),
    }
}

fn power(row: &Row) -> Cell {
    match (row.number("power_draw_w"), row.number("power_limit_w")) {
        (Some(draw), Some(limit)) => Cell::plain(format!("{draw:.0}/{limit:.0}")),
        (Some(draw), None) => Cell::plain(format!("{draw:.0}")),
        (None, _) => of(row, "power_draw_w"),
    }
}

fn throttle(row: &Row) -> Cell {
    let Some(bits) = row.number("reasons") else { return of(row, "reasons") };
    let bits = bits as u64;
    let found = || REASONS.iter().filter(move |(bit, ..)| bits & bit != 0);
    match found().next() {
        None => Cell::none(),
        Some((.., worst)) => {
            Cell::toned(found().map(|(_, word, _)| *word).collect::<Vec<_>>().join(","), *worst)
        }
    }
}

fn mig(row: &Row) -> Cell {
    let Some(now) = row.now.as_ref() else { return missing(row) };
    match row.number("mig_current") {
        None => return of(row, "mig_current"),
        Some(0.0) => return Cell::none(),
        Some(_) => {}
    }
    let mut counts: Vec<(&str, usize, usize)> = Vec::new();
    for part in &now.instances {
        match counts.iter_mut().find(|(profile, ..)| *profile == part.profile) {
            Some((.., all)) => *all += 1,
            None => counts.push((&part.profile, 0, 1)),
        }
    }
    for profile in free_slices(now) {
        if let Some((_, free, _)) = counts.iter_mut().find(|(known, ..)| *known == profile) {
            *free += 1;
        }
    }
    let words: Vec<String> =
        counts.iter().map(|(profile, free, all)| format!("{free}/{all} {profile}")).collect();
    if words.is_empty() { Cell::toned("on", Tone::Warning) } else { Cell::plain(words.join(" + ")) }
}

fn holder(row: &Row) -> Cell {
    let Some(now) = row.now.as_ref() else {
        return if row.why.is_empty() { Cell::none() } else { Cell::toned(&row.why, Tone::Muted) };
    };
    let Some(first) = now.holders.first() else {
        return match row.signal("process_count") {
            Some(Signal::Unknown(_)) => Cell::unknown(),
            _ if row.number("process_count").is_some_and(|count| count > 0.0) => Cell::unknown(),
            _ if row.mps => Cell::toned("MPS daemon", Tone::Muted),
            _ => Cell::none(),
        };
    };
    let same = now.holders.iter().all(|other| (&other.user, &other.unit) == (&first.user, &first.unit));
    let more = now.holders.len() - 1 + now.more_holders as usize;
    let mut words: Vec<String> = first.unit.iter().map(|unit| owner(unit)).collect();
    words.push(first.user.clone());
    words.push(program(first));
    if more > 0 {
        words.push(if same { format!("x{}", more + 1) } else { format!("+{more}") });
    }
    Cell::plain(words.join(" "))
}

/// Shortens a unit: the end of a pod's UID says nothing to a person.
fn owner(unit: &str) -> String {
    if let Some(job) = unit.strip_prefix("Slurm job ") {
        return format!("job {job}");
    }
    if let Some(uid) = unit.strip_prefix("pod ") {
        return format!("pod {}", uid.chars().take(8).collect::<String>());
    }
    unit.to_owned()
}

/// A program that runs others, and what its options mean.
struct Interpreter {
    /// Its name, without a version.
    name: &'static str,
    /// Letters after which the text itself is the program.
    text: &'static str,
    /// Letters that take the rest of their word, or the next one.
    takes: &'static str,
    /// Long options that take the next word.
    long: &'static [&'static str],
}

/// Source: the manuals of each, of CPython 3.13, bash 5.2, dash 0.5, Perl 5.40, Ruby 3.3 and Node.js 22.
const INTERPRETERS: [Interpreter; 9] = [
    Interpreter { name: "python", text: "c", takes: "WX", long: &["--check-hash-based-pycs"] },
    Interpreter { name: "pypy", text: "c", takes: "WX", long: &[] },
    Interpreter { name: "bash", text: "c", takes: "oO", long: &["--rcfile", "--init-file"] },
    Interpreter { name: "sh", text: "c", takes: "o", long: &[] },
    Interpreter { name: "dash", text: "c", takes: "o", long: &[] },
    Interpreter { name: "zsh", text: "c", takes: "o", long: &[] },
    Interpreter { name: "perl", text: "eE", takes: "I", long: &[] },
    Interpreter { name: "ruby", text: "e", takes: "Ir", long: &[] },
    Interpreter { name: "node", text: "ep", takes: "r", long: &["--require", "--import", "--loader"] },
];

/// Returns what a command line runs: the script or module of an interpreter, else the program, without its folder. Never a
/// word of a text that an interpreter is given.
fn program(holder: &Holder) -> String {
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let mut words = holder.command.split_whitespace();
    let first = words.next().map(base).unwrap_or_default();
    if first.is_empty() {
        return format!("pid {}", holder.pid);
    }
    let unversioned = first.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let script = match INTERPRETERS.iter().find(|known| known.name == unversioned) {
        Some(known) => script(known, words),
        None if first == "java" => java(words),
        None => None,
    };
    script.map_or(first, base)
}

fn script<'a>(of: &Interpreter, mut words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix('-') else { return Some(word) };
        if option.is_empty() || matches!(word, "--eval" | "--print") {
            return None;
        }
        if option.starts_with('-') {
            if of.long.contains(&word) {
                words.next();
            }
            continue;
        }
        for (at, letter) in option.char_indices() {
            let rest = option.get(at + letter.len_utf8()..).filter(|rest| !rest.is_empty());
            if of.text.contains(letter) {
                return None;
            }
            if letter == 'm' && of.name.starts_with("py") {
                return rest.or_else(|| words.next());
            }
            if of.takes.contains(letter) {
                if rest.is_none() {
                    words.next();
                }
                break;
            }
        }
    }
    None
}

/// Returns the class, or the archive after `-jar`. Source: the manual of java 21.
fn java<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    while let Some(word) = words.next() {
        match word {
            "-jar" | "-m" | "--module" => return words.next(),
            "-cp" | "-classpath" | "--class-path" | "-p" | "--module-path" | "--add-modules" => {
                words.next();
            }
            _ if !word.starts_with('-') => return Some(word),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_by_its_program_and_by_no_word_of_its_text() {
        for (command, expected) in [
            ("/usr/bin/python3 -c import torch; torch.ones(9)", "python3"),
            ("python3 -uc import torch", "python3"),
            ("python3.11 -u /home/alice/train.py --epochs 9", "train.py"),
            ("python3 -X faulthandler -W ignore train.py", "train.py"),
            ("python3 -Xdev train.py", "train.py"),
            ("/opt/venv/bin/python -m torch.distributed.run train.py", "torch.distributed.run"),
            ("python3 - serve", "python3"),
            ("python3", "python3"),
            ("bash -lc sleep 9", "bash"),
            ("sh /srv/run.sh -c", "run.sh"),
            ("bash -o pipefail run.sh", "run.sh"),
            ("perl -we print 1", "perl"),
            ("node --require dotenv server.js", "server.js"),
            ("node --eval while(1);", "node"),
            ("java -Xmx4g -cp a.jar:b.jar org.example.Main", "org.example.Main"),
            ("java -jar /srv/serve.jar --port 1", "serve.jar"),
            ("/opt/sharder --fast data", "sharder"),
            ("", "pid 41"),
        ] {
            let holder = Holder { pid: 41, command: command.to_owned(), ..Holder::default() };
            assert_eq!(program(&holder), expected, "{command}");
        }
    }
}
