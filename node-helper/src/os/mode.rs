//! Permission bits as people write them.

/// Returns the permission bits that `text` gives a path with the bits `current`.
///
/// Octal digits are absolute. The symbolic form is relative, as `chmod` reads it with a umask of 0; `X` is `x` if the
/// path is a directory or somebody may already execute it. `None` for any other text.
pub fn resolve(text: &str, current: u32, directory: bool) -> Option<u32> {
    if !text.is_empty() && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte)) {
        return u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o7777);
    }
    let mut bits = current & 0o7777;
    for clause in text.split(',') {
        bits = apply(clause, bits, directory)?;
    }
    Some(bits)
}

fn apply(clause: &str, mut bits: u32, directory: bool) -> Option<u32> {
    let at = clause.find(['=', '+', '-'])?;
    let (who, mut rest) = clause.split_at_checked(at)?;
    let mut shifts = Vec::new();
    for class in who.chars() {
        match class {
            'u' => shifts.push(6),
            'g' => shifts.push(3),
            'o' => shifts.push(0),
            'a' => shifts.extend([6, 3, 0]),
            _ => return None,
        }
    }
    let everybody = shifts.is_empty();
    if everybody {
        shifts.extend([6, 3, 0]);
    }
    while let Some(operator) = rest.chars().next() {
        let end =
            rest.char_indices().skip(1).find(|(_, c)| "=+-".contains(*c)).map_or(rest.len(), |(at, _)| at);
        let (this, next) = rest.split_at_checked(end)?;
        rest = next;
        let (mut set, mut covered) = (0, 0);
        for shift in &shifts {
            let special = match shift {
                6 => 0o4000,
                3 => 0o2000,
                _ => 0o1000,
            };
            covered |= 0o7 << shift;
            if *shift != 0 {
                covered |= special;
            }
            for permission in this.chars().skip(1) {
                set |= match permission {
                    'r' => 0o4 << shift,
                    'w' => 0o2 << shift,
                    'x' => 0o1 << shift,
                    'X' if directory || bits & 0o111 != 0 => 0o1 << shift,
                    'X' => 0,
                    's' if *shift != 0 => special,
                    's' => 0,
                    't' => 0o1000,
                    'u' => (bits >> 6 & 0o7) << shift,
                    'g' => (bits >> 3 & 0o7) << shift,
                    'o' => (bits & 0o7) << shift,
                    _ => return None,
                };
            }
        }
        if everybody || shifts.contains(&0) {
            covered |= 0o1000;
        }
        bits = match operator {
            '+' => bits | set,
            '-' => bits & !set,
            '=' => bits & !covered | set,
            _ => return None,
        };
    }
    Some(bits)
}

/// Formats permission bits as four octal digits.
pub fn octal(bits: u32) -> String {
    format!("{:04o}", bits & 0o7777)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_forms() {
        let cases = [
            ("0644", 0o777, Some(0o644)),
            ("4755", 0, Some(0o4755)),
            ("u=rw,g=r,o=", 0o777, Some(0o640)),
            ("+x", 0o644, Some(0o755)),
            ("u+s", 0o755, Some(0o4755)),
            ("a-w", 0o666, Some(0o444)),
            ("g=u", 0o640, Some(0o660)),
            ("a+X", 0o644, Some(0o644)),
            ("a+X", 0o744, Some(0o755)),
            ("+t", 0o777, Some(0o1777)),
            ("o=", 0o1777, Some(0o770)),
            ("u+x-w", 0o644, Some(0o544)),
            ("z=r", 0o644, None),
            ("u", 0o644, None),
            ("0999", 0, None),
            ("17777", 0, None),
        ];
        for (text, current, want) in cases {
            assert_eq!(resolve(text, current, false), want, "{text} on {current:o}");
        }
        assert_eq!(resolve("a+X", 0o644, true), Some(0o755));
    }

    proptest! {
        #[test]
        fn octal_text_is_absolute(bits in 0u32..0o10000, current in 0u32..0o10000) {
            prop_assert_eq!(resolve(&octal(bits), current, false), Some(bits));
        }

        #[test]
        fn symbolic_forms_are_idempotent_and_agree_with_their_model(
            who in "[ugo]", operator in "[=+-]", permissions in "[rwx]{0,3}", current in 0u32..0o1000
        ) {
            let text = format!("{who}{operator}{permissions}");
            let shift = match who.as_str() { "u" => 6, "g" => 3, _ => 0 };
            let mask: u32 = permissions.chars().map(|c| match c { 'r' => 4, 'w' => 2, _ => 1 }).fold(0, |a, b| a | b);
            let had = current >> shift & 7;
            let now = match operator.as_str() { "=" => mask, "+" => had | mask, _ => had & !mask };
            let once = resolve(&text, current, false).unwrap();
            prop_assert_eq!(once, current & !(7 << shift) | now << shift);
            prop_assert_eq!(resolve(&text, once, false), Some(once));
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,10}", current in any::<u32>()) {
            let _ = resolve(&text, current, true);
        }
    }
}
