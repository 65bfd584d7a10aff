//! Files with sections, as systemd and NetworkManager write them.

/// Returns the names and values of a section in their order; comments are left out.
pub fn section<'t>(text: &'t str, wanted: &str) -> Vec<(&'t str, &'t str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(title) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = title == wanted;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| inside) {
            found.push((name.trim(), value.trim()));
        }
    }
    found
}

/// Returns the value of a name in a section; the last one counts.
pub fn value<'t>(text: &'t str, wanted: &str, name: &str) -> Option<&'t str> {
    section(text, wanted).into_iter().rev().find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// Returns the value of a line `NAME=VALUE`, without quotes.
pub fn plain<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let value = |line: &'t str| line.trim().strip_prefix(name)?.strip_prefix('=');
    text.lines().find_map(value).map(|value| value.trim().trim_matches(['"', '\'']))
}

/// Returns a size as systemd reads it: with `K`, `M` or `G` to the base of 1024. Source: systemd.network(5), `MTUBytes=`.
pub fn size(text: &str) -> Option<u64> {
    let (digits, factor) = match text.chars().last()? {
        'K' => (text.strip_suffix('K')?, 1024),
        'M' => (text.strip_suffix('M')?, 1024 * 1024),
        'G' => (text.strip_suffix('G')?, 1024 * 1024 * 1024),
        _ => (text, 1),
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_section_counts() {
        let text = "[Match]\nName=a\n[Link]\n# MTUBytes=1\nMTUBytes = 9000\n[Network]\nMTUBytes=3\n[Link]\nMTUBytes=9K\n";
        assert_eq!(value(text, "Link", "MTUBytes"), Some("9K"));
        assert_eq!(value(text, "Match", "MTUBytes"), None);
        assert_eq!((size("9K"), size("9000"), size("x"), size("")), (Some(9216), Some(9000), None, None));
        assert_eq!(plain("A=1\nNETWORK_FILE=\"/x\"\n", "NETWORK_FILE"), Some("/x"));
    }
}
