//! Applies a check to each GPU of one reading. Pure.

use gpufleet_protocol::{
    health::Verdict,
    nvml::{Code, GpuReading},
};

use super::{Found, Seen};

pub const NO_GPU: &str = "there is no NVIDIA GPU on this node";

/// The result of a check for one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    Fine,
    /// Fine, with a note.
    Noted(String),
    Wrong(String),
    Unreadable(String),
    /// This GPU lacks what is checked.
    Absent,
}

/// Whether there is no GPU, as far as the bus and the driver show.
pub fn none(seen: &Seen) -> bool {
    seen.on_bus == 0
        && match &seen.snapshot {
            Ok(snapshot) => {
                snapshot.gpus.is_empty() && snapshot.unreadable.is_empty() && snapshot.drained.is_empty()
            }
            Err(unread) => unread.no_driver,
        }
}

/// Checks each GPU; the worst result counts.
pub fn each(seen: &Seen, ask: fn(&GpuReading) -> Says) -> Found {
    if none(seen) {
        return (Verdict::NotApplicable, NO_GPU.to_owned());
    }
    let snapshot = match &seen.snapshot {
        Ok(snapshot) => snapshot,
        Err(unread) => return (Verdict::Unknown, unread.why.clone()),
    };
    let (mut wrong, mut unread, mut fine) = (Vec::new(), Vec::new(), 0);
    let mut noted = String::new();
    for gpu in &snapshot.gpus {
        match ask(gpu) {
            Says::Fine => fine += 1,
            Says::Noted(what) => {
                fine += 1;
                noted.push_str(&format!("; GPU {}: {what}", gpu.index));
            }
            Says::Absent => {}
            Says::Wrong(why) => wrong.push(format!("GPU {}: {why}", gpu.index)),
            Says::Unreadable(why) => unread.push(format!("GPU {}: {why}", gpu.index)),
        }
    }
    for (index, code) in &snapshot.unreadable {
        unread.push(format!("GPU {index} cannot be read: {code}"));
    }
    if !wrong.is_empty() {
        wrong.extend(unread);
        return (Verdict::Fail, wrong.join("; "));
    }
    if !unread.is_empty() {
        return (Verdict::Unknown, unread.join("; "));
    }
    match (fine, snapshot.gpus.len()) {
        (_, 0) if !snapshot.drained.is_empty() => {
            (Verdict::NotApplicable, "every GPU of the node is drained".to_owned())
        }
        (_, 0) => (Verdict::Unknown, "the driver lists no GPU".to_owned()),
        (0, count) => (
            Verdict::NotApplicable,
            match count {
                1 => "the GPU does not have it".to_owned(),
                _ => format!("none of the {count} GPUs has it"),
            },
        ),
        (fine, count) if fine == count => (Verdict::Ok, format!("{}{noted}", super::gpus_text(count))),
        (fine, count) => (Verdict::Ok, format!("{fine} of {count} GPUs, the others do not have it{noted}")),
    }
}

/// Whether the code says that a GPU or driver lacks something, and not that reading it failed.
pub const fn lacks(code: Code) -> bool {
    matches!(code, Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND)
}

pub fn on(value: bool) -> &'static str {
    if value { "enabled" } else { "disabled" }
}
