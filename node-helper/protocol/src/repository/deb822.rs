//! Sources of apt in stanzas, the format of Debian's control files (deb822(5), sources.list(5)).

use super::sources::Parts;

/// A paragraph of fields, in the order written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stanza {
    pub fields: Vec<(String, String)>,
}

/// Parses all stanzas of a file. Lines that are neither a field nor its continuation are left out, as apt reports them.
pub fn stanzas(text: &str) -> Vec<Stanza> {
    let mut all = vec![Stanza::default()];
    for line in text.lines() {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            all.push(Stanza::default());
            continue;
        }
        let Some(stanza) = all.last_mut() else { continue };
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.fields.last_mut() {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            stanza.fields.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    all.retain(|stanza| !stanza.fields.is_empty());
    all
}

/// Writes one field; a value of several lines goes below its name.
pub fn field(name: &str, value: &str) -> String {
    if !value.contains('\n') {
        return format!("{name}: {value}\n");
    }
    let mut out = format!("{name}:\n");
    for line in value.trim().lines() {
        let line = line.trim();
        out.push_str("    ");
        out.push_str(if line.is_empty() { "." } else { line });
        out.push('\n');
    }
    out
}

impl Stanza {
    /// Returns the value of a field, whose name is compared without case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    fn words(&self, name: &str) -> std::str::SplitWhitespace<'_> {
        self.get(name).unwrap_or_default().split_whitespace()
    }

    /// Whether it declares everything that a one-line source does.
    pub fn covers(&self, parts: &Parts<'_>) -> bool {
        let off = self.get("Enabled").is_some_and(|value| {
            ["no", "false", "0", "off", "without", "disable"]
                .iter()
                .any(|word| value.eq_ignore_ascii_case(word))
        });
        let plain = |uri: &str| uri.trim_end_matches('/').to_owned();
        let has = |name: &str, wanted: &str| self.words(name).any(|word| word == wanted);
        !off && has("Types", parts.kind)
            && self.words("URIs").any(|uri| plain(uri) == plain(parts.uri))
            && has("Suites", parts.suite)
            && parts.components.iter().all(|component| has("Components", component))
            && parts.options.iter().all(|(name, value)| {
                let name = match name.to_ascii_lowercase().as_str() {
                    "arch" => "Architectures".to_owned(),
                    "lang" => "Languages".to_owned(),
                    "target" => "Targets".to_owned(),
                    other => other.to_owned(),
                };
                value.split(',').all(|wanted| has(&name, wanted))
            })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEBIAN: &str = "# distribution\nTypes: deb deb-src\nURIs: http://deb.debian.org/debian/\nSuites: trixie trixie-updates\n\
                          Components: main\nSigned-By: /usr/share/keyrings/debian.gpg\nArchitectures: amd64 arm64\n\n\
                          Types: deb\nURIs: https://off.example\nSuites: ./\nEnabled: no\n";

    #[test]
    fn stanzas_cover_lines() {
        let all = stanzas(DEBIAN);
        assert_eq!(all.len(), 2);
        for (line, covered) in [
            ("deb http://deb.debian.org/debian trixie main", true),
            (
                "deb [arch=amd64,arm64 signed-by=/usr/share/keyrings/debian.gpg] http://deb.debian.org/debian trixie-updates main",
                true,
            ),
            ("deb [signed-by=/other.gpg] http://deb.debian.org/debian trixie main", false),
            ("deb http://deb.debian.org/debian trixie main contrib", false),
            ("deb http://deb.debian.org/debian bookworm main", false),
            ("deb https://off.example ./", false),
        ] {
            let parts = Parts::of(line).unwrap();
            assert_eq!(all.iter().any(|stanza| stanza.covers(&parts)), covered, "{line}");
        }
    }

    #[test]
    fn long_values_go_below_their_names() {
        assert_eq!(field("Types", "deb"), "Types: deb\n");
        assert_eq!(field("Signed-By", "-----BEGIN\n\nabc\n"), "Signed-By:\n    -----BEGIN\n    .\n    abc\n");
    }

    proptest! {
        #[test]
        fn fields_read_back(name in "[A-Z][a-z-]{0,8}", value in "[a-z]{1,8}(\n[a-z ]{0,8}[a-z])*") {
            let read = stanzas(&field(&name, &value));
            let lines: Vec<&str> = value.lines().map(str::trim).map(|l| if l.is_empty() { "." } else { l }).collect();
            let joined = lines.join("\n");
            prop_assert_eq!(read.len(), 1);
            prop_assert_eq!(read[0].get(&name).map(str::trim), Some(joined.as_str()));
        }

        #[test]
        fn anything_can_be_read(text in any::<String>()) {
            for stanza in stanzas(&text) {
                prop_assert!(!stanza.fields.is_empty());
                let _ = stanza.covers(&Parts { kind: "deb", uri: "http://a", suite: "x", ..Parts::default() });
            }
        }
    }
}
