//! Parameters of `kdump`, which keeps what a crashed kernel leaves.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

/// Keeps a second kernel ready, which writes the memory of a crashed one to the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Kdump {
    /// Memory that is set aside for it, as the kernel takes it: `512M`, `1G-64G:256M,64G-:512M`. Without it, the command line
    /// is left alone.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub crashkernel: Option<String>,
}

impl Kdump {
    /// Returns the bytes of a plain size such as `512M`; `None` for ranges and offsets.
    pub fn bytes(&self) -> Option<u64> {
        size(self.crashkernel.as_deref()?).ok()
    }
}

/// Reads a size, such as `512M`. Source: kernel, lib/cmdline.c (`memparse`).
fn size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (text.get(..text.len() - 1).unwrap_or_default(), 1 << 10),
        Some(b'M' | b'm') => (text.get(..text.len() - 1).unwrap_or_default(), 1 << 20),
        Some(b'G' | b'g') => (text.get(..text.len() - 1).unwrap_or_default(), 1 << 30),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("`{text}` is no size: digits, and K, M or G"));
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return Err(format!("the kernel reads `{text}` as an octal number, because of the 0 in front"));
    }
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.ok_or_else(|| format!("`{text}` is more than any machine has"))
}

/// As [`size`], of memory that is set aside.
fn enough(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < 32 << 20 => {
            Err(format!("no kernel starts in less than 32M; has `{text}` lost its `M`?"))
        }
        bytes => Ok(bytes),
    }
}

/// Checks a list such as `1G-64G:256M,64G-:512M`.
fn ranges(text: &str) -> Result<(), String> {
    for part in text.split(',') {
        let (range, set_aside) = part
            .split_once(':')
            .ok_or_else(|| format!("`{part}` is no range: with one `:`, each is as `1G-64G:256M`"))?;
        let (from, to) =
            range.split_once('-').ok_or_else(|| format!("`{range}` lacks its `-`, as in `1G-64G`"))?;
        let from = size(from)?;
        if !to.is_empty() && size(to)? <= from {
            return Err(format!("the range `{range}` ends before it begins"));
        }
        // None may be set aside on a small machine.
        if size(set_aside)? != 0 {
            enough(set_aside)?;
        }
    }
    Ok(())
}

/// Checks what the kernel takes: `SIZE[@OFFSET]`, `SIZE,high`, `SIZE,low` or `RANGE:SIZE[,...][@OFFSET]`, and `auto` of older
/// kernels of Red Hat.
///
/// # Errors
/// Why the kernel would set nothing aside. Source: kernel, admin-guide/kdump/kdump and kernel/crash_reserve.c.
fn check_crashkernel(text: &str) -> Result<(), String> {
    if text == "auto" {
        return Ok(());
    }
    if let Some(below) = text.strip_suffix(",low") {
        return size(below).map(drop);
    }
    if let Some(above) = text.strip_suffix(",high") {
        return enough(above).map(drop);
    }
    let (what, offset) = text.split_once('@').map_or((text, None), |(what, offset)| (what, Some(offset)));
    offset.map_or(Ok(0), size)?;
    match what.contains(':') {
        true => ranges(what),
        false => enough(what).map(drop),
    }
}

impl Kind for Kdump {
    const INFO: KindInfo = KindInfo {
        name: "kdump",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Reboot,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Keeps a second kernel ready, which writes the memory of a crashed one to the disk.",
        example: "kdump: {crashkernel: 512M}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let Some(text) = &self.crashkernel else { return Ok(()) };
        check_crashkernel(text).map_err(|why| {
            let forms = "`512M`, `512M@16M`, `256M,high`, `128M,low` or `1G-64G:256M,64G-:512M`";
            ParamError::new("crashkernel", format!("{why}; the kernel takes {forms}"))
        })
    }
}

impl GroundKind for Kdump {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/kernel/kexec_crash_size and kexec_crash_loaded",
            "kdump-tools.service (Debian, Ubuntu) or kdump.service; /etc/default/kdump-tools",
            "with `crashkernel`, what `kernel_cmdline` reads",
        ],
        writes: &[
            "with `crashkernel`, that word on the kernel command line",
            "the service is enabled, and started where memory is set aside and no kernel is loaded",
        ],
        takes_effect: "memory is set aside at the next boot only; the second kernel is loaded at once",
        survives: "reboots; CPUs that go offline or online make the service load it again",
        owners: &[
            "the package kdump-tools has a crashkernel= of its own in /etc/default/grub.d: `kernel_cmdline` names and replaces it",
            "on Red Hat, kdumpctl reset-crashkernel writes the same word",
            "a smaller number written to kexec_crash_size gives memory back until the next boot",
        ],
        source: "kernel, admin-guide/kdump/kdump and ABI/testing/sysfs-kernel (kexec_crash_size)",
    };
}

impl Operation for Kdump {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        match self.crashkernel {
            Some(_) => {
                Reach::places(["/etc/default/grub", "/etc/default/grub.d", "/etc/kernel/cmdline", "/boot"])
            }
            None => Reach::Nothing,
        }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::Kdump(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        let read = |text: &str| Kdump { crashkernel: Some(text.to_owned()) };
        for right in ["512M", "1G-64G:256M,64G-:512M", "256M,high", "512M@16M", "auto"] {
            assert!(read(right).check().is_ok(), "{right}");
        }
        for wrong in ["", "512", "512M quiet", "crashkernel=512M", "M"] {
            assert!(read(wrong).check().is_err(), "{wrong}");
        }
        assert_eq!((read("512M").bytes(), read("256M,high").bytes()), (Some(512 << 20), None));
    }

    #[test]
    fn what_the_kernel_would_not_understand_is_told_why() {
        let why = |text: &str| check_crashkernel(text).unwrap_err();
        for (wrong, part) in [
            ("512MB", "`512MB` is no size"),
            ("512M,hi", "`512M,hi` is no size"),
            ("512M@16M,high", "`512M@16M` is no size"),
            ("1G-2G:256M,high", "`1G-2G:256M` is no size"),
            ("1G-64G:256M,512M", "`512M` is no range"),
            ("64G:512M", "`64G` lacks its `-`"),
            ("64G-1G:512M", "ends before it begins"),
            ("1G-:512M,", "`` is no range"),
            ("1G-64G:256", "has `256` lost its `M`?"),
            ("0512M", "octal"),
            ("99999999999999999999G", "more than any machine has"),
        ] {
            assert!(why(wrong).contains(part), "{wrong}: {}", why(wrong));
        }
        for right in ["0-2G:0,2G-:256M@64M", "128m,low", "0,low"] {
            assert_eq!(check_crashkernel(right), Ok(()), "{right}");
        }
    }

    /// The kernel's own `memparse`, whose number may have another base; returns what is left.
    fn memparse(text: &str) -> Option<(u64, &str)> {
        let (digits, base) = match text.strip_prefix("0x") {
            Some(rest) => (rest, 16),
            None if text.starts_with('0') => (text, 8),
            None => (text, 10),
        };
        let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
        let number = u64::from_str_radix(digits.get(..end)?, base).ok()?;
        let rest = digits.get(end..)?;
        let factor = match rest.chars().next() {
            Some('K' | 'k') => 10,
            Some('M' | 'm') => 20,
            Some('G' | 'g') => 30,
            _ => return Some((number, rest)),
        };
        Some((number.checked_mul(1 << factor)?, rest.get(1..)?))
    }

    /// What the kernel sets aside on a machine, or none if it does not understand the text.
    fn kernel(text: &str, memory: u64) -> Option<u64> {
        let end = |(bytes, rest): (u64, &str)| match rest.strip_prefix('@') {
            Some(offset) => memparse(offset).filter(|(_, rest)| rest.is_empty()).map(|_| bytes),
            None => rest.is_empty().then_some(bytes),
        };
        if !text.contains(':') {
            let (bytes, rest) = memparse(text)?;
            return if matches!(rest, ",high" | ",low") { Some(bytes) } else { end((bytes, rest)) };
        }
        let (mut rest, mut found) = (text, 0);
        loop {
            let (from, after) = memparse(rest)?;
            let after = after.strip_prefix('-')?;
            let (to, after) = if after.starts_with(':') { (u64::MAX, after) } else { memparse(after)? };
            if to <= from {
                return None;
            }
            let (bytes, after) = memparse(after.strip_prefix(':')?)?;
            if memory >= from && memory < to {
                found = bytes;
            }
            match after.strip_prefix(',') {
                Some(next) => rest = next,
                None => return end((found, after)),
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn the_kernel_takes_what_is_taken(text in "[0-9]{1,4}[KMGkmg]?([-:,@]{1,2}[0-9]{0,4}[KMG]?){0,6}(,high|,low|B|)") {
            if check_crashkernel(&text).is_ok() {
                proptest::prop_assert!(kernel(&text, 16 << 30).is_some(), "{text}");
            }
        }

        #[test]
        fn what_is_built_by_the_rules_is_taken(
            parts in proptest::collection::vec((1u64..64, 1u64..64, 32u64..4096), 1..4),
            offset in proptest::option::of(1u64..4096),
        ) {
            let tail = offset.map(|offset| format!("@{offset}M")).unwrap_or_default();
            let ranges: Vec<String> =
                parts.iter().map(|(from, more, mib)| format!("{from}G-{}G:{mib}M", from + more)).collect();
            let (_, _, mib) = parts[0];
            for text in [format!("{}{tail}", ranges.join(",")), format!("{mib}M{tail}"), format!("{mib}M,high")] {
                proptest::prop_assert_eq!(check_crashkernel(&text), Ok(()), "{}", text);
                proptest::prop_assert!(kernel(&text, 16 << 30).is_some(), "{text}");
            }
        }
    }
}
