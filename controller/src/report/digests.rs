//! Digests in texts for people, shortened: all they show is that something differs.

/// Shortens long hexadecimal numbers in a text; the full ones are added to `whole`.
pub(crate) fn short(text: &str, whole: &mut Vec<String>) -> String {
    const LONG: usize = 32;
    const SHOWN: usize = 8;
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_hexdigit()) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(from.len());
        let (digits, after) = from.split_at(end);
        out.push_str(before);
        if digits.len() >= LONG {
            out.push_str(&digits[..SHOWN]);
            out.push('…');
            if !whole.iter().any(|known| known == digits) {
                whole.push(digits.to_owned());
            }
        } else {
            out.push_str(digits);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
