//! Values of kernel parameters, as the kernel parses them. Pure.

use crate::declare::Trouble;

/// Pairs of parameters below `/proc/sys`, of which setting one makes the other 0. Source: kernel,
/// admin-guide/sysctl/vm.
const PAIRS: [(&str, &str); 3] = [
    ("vm/dirty_ratio", "vm/dirty_bytes"),
    ("vm/dirty_background_ratio", "vm/dirty_background_bytes"),
    ("vm/overcommit_ratio", "vm/overcommit_kbytes"),
];

/// Parameters that cannot be set to 0, but read as 0 while their partner is set.
const NEVER_ZERO: [&str; 2] = ["vm/dirty_bytes", "vm/dirty_background_bytes"];

/// Returns the parameter that becomes 0 when this one is set.
pub fn partner(key: &str) -> Option<&'static str> {
    PAIRS.iter().find_map(|(one, other)| match key {
        _ if key == *one => Some(*other),
        _ if key == *other => Some(*one),
        _ => None,
    })
}

/// Returns a value with single blanks between its words.
pub fn words(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the number that the kernel reads: decimal, or hexadecimal with `0x`. `None` with a leading zero, which is
/// octal to some parameters, and text or a mask to others.
fn number(word: &str) -> Option<i128> {
    let (negative, digits) = word.strip_prefix('-').map_or((false, word), |digits| (true, digits));
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => i128::from_str_radix(hexadecimal, 16).ok()?,
        None if digits.len() > 1 && digits.starts_with('0') => return None,
        None if digits.chars().all(|c| c.is_ascii_digit()) => digits.parse().ok()?,
        None => return None,
    };
    Some(if negative { -value } else { value })
}

/// Whether the kernel reads two values as the same: `0x3c` is 60.
pub fn equal(one: &str, other: &str) -> bool {
    let same = |(one, other): (&str, &str)| {
        one == other || matches!((number(one), number(other)), (Some(one), Some(other)) if one == other)
    };
    one.split_whitespace().count() == other.split_whitespace().count()
        && one.split_whitespace().zip(other.split_whitespace()).all(same)
}

/// Whether a value is 0.
pub fn is_zero(value: &str) -> bool {
    number(value) == Some(0) || !value.is_empty() && value.chars().all(|c| c == '0')
}

/// Returns a word that the kernel reads as octal if the parameter is a number.
fn octal(value: &str) -> Option<&str> {
    value.split_whitespace().find(|word| {
        let digits = word.strip_prefix('-').unwrap_or(word);
        digits.len() > 1 && digits.starts_with('0') && digits.chars().all(|c| c.is_ascii_digit())
    })
}

/// Returns a warning for a value that cannot be compared with a present one.
pub fn doubt(name: &str, wanted: &str, now: Option<&str>) -> Option<String> {
    let word = octal(wanted).filter(|_| now.is_none())?;
    Some(format!(
        "the running kernel has no {name} to compare with: if it is a number, the kernel reads `{word}` as octal; write \
         it without the leading zero"
    ))
}

/// Refuses values that the kernel would not read as written.
///
/// # Errors
/// If it would not, with the reason.
pub fn check(name: &str, key: &str, wanted: &str, now: Option<&str>) -> Result<(), Trouble> {
    if NEVER_ZERO.contains(&key) && is_zero(wanted) {
        let ratio = partner(key).unwrap_or_default().replace('/', ".");
        return Err(Trouble::invalid(format!(
            "the kernel does not take 0 as {name}: it reads 0 while {ratio} counts, so `{ratio}` is what to declare"
        )));
    }
    let Some(now) = now else { return Ok(()) };
    let plain = |word: &str| {
        let digits = word.strip_prefix('-').unwrap_or(word);
        number(word).is_some() && (digits.len() == 1 || !digits.starts_with('0'))
    };
    // Only beside numbers: in masks and texts a leading zero has no meaning.
    if now.is_empty() || !now.split_whitespace().all(plain) {
        return Ok(());
    }
    if let Some(word) = octal(wanted) {
        let read = i128::from_str_radix(word.trim_start_matches('-'), 8);
        let read = read.map_or_else(|_| "no number".to_owned(), |value| value.to_string());
        return Err(Trouble::invalid(format!(
            "the kernel reads `{word}` as octal, so that {name} would be {read}; write it without the leading zero"
        )));
    }
    let (have, want) = (now.split_whitespace().count(), wanted.split_whitespace().count());
    if have == want {
        return Ok(());
    }
    Err(Trouble::invalid(format!(
        "{name} has {have} value{}, now `{now}`, and `{wanted}` has {want}: the kernel would leave out the rest without a \
         word",
        if have == 1 { "" } else { "s" }
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_as_numbers() {
        for (one, other, same) in [
            ("60", "0x3c", true),
            ("0X3C", "0x3c", true),
            ("60", "61", false),
            ("4096 131072", "0x1000 131072", true),
            ("4096", "4096 131072", false),
            ("-1", "-0x1", true),
            ("010", "10", false),
            ("010", "8", false),
            ("010", "010", true),
            ("-010", "-10", false),
            ("0", "0x0", true),
            ("cubic", "cubic", true),
            ("cubic", "reno", false),
            ("340282366920938463463374607431768211456", "0", false),
        ] {
            assert_eq!(equal(one, other), same, "{one} {other}");
        }
    }

    #[test]
    fn what_the_kernel_would_take_for_something_else_is_refused() {
        let said = |key: &str, wanted: &str, now: &str| match check(
            &key.replace('/', "."),
            key,
            wanted,
            Some(now),
        ) {
            Ok(()) => String::new(),
            Err(Trouble::Failed { message, .. }) => message,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(
            said("vm/swappiness", "010", "60"),
            "the kernel reads `010` as octal, so that vm.swappiness would be 8; write it without the leading zero"
        );
        assert_eq!(
            said("net/ipv4/tcp_rmem", "4096", "4096 131072 6291456"),
            "net.ipv4.tcp_rmem has 3 values, now `4096 131072 6291456`, and `4096` has 1: the kernel would leave out the \
             rest without a word"
        );
        assert!(said("vm/swappiness", "60 abc", "60").contains("has 1 value,"));
        assert!(said("vm/dirty_bytes", "0", "0").contains("`vm.dirty_ratio` is what to declare"));
        for (key, wanted, now) in [
            ("vm/swappiness", "0", "60"),
            ("vm/swappiness", "0x3c", "60"),
            ("net/core/flow_limit_cpu_bitmap", "0003", "0000"),
            ("kernel/core_pattern", "|/bin/x %p", "core"),
            ("net/ipv4/ip_local_reserved_ports", "80,90", ""),
            ("vm/dirty_ratio", "0", "20"),
        ] {
            assert_eq!(said(key, wanted, now), "", "{key}");
        }
    }
}
