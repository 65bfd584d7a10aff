//! One-line sources of apt: `deb [arch=amd64] http://example.com/debian stable main` (sources.list(5)).

/// The types of sources.
const TYPES: [&str; 2] = ["deb", "deb-src"];

/// A line of a `.list` file that is a source, perhaps commented out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub enabled: bool,
    /// The source with single blanks.
    pub text: String,
    /// What follows a `#` behind the source; empty if nothing does.
    pub comment: String,
}

impl Source {
    /// Parses a line; `None` if it is no source.
    pub fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (enabled, line) = match line.strip_prefix('#') {
            Some(rest) => (false, rest),
            None => (true, line),
        };
        let (source, comment) = match line.find('#').filter(|at| *at > 0) {
            Some(at) => (line.get(..at)?, line.get(at + 1..)?.trim()),
            None => (line, ""),
        };
        let words: Vec<&str> = source.split_whitespace().collect();
        let is_source = words.first().is_some_and(|word| TYPES.contains(word));
        is_source.then(|| Self { enabled, text: words.join(" "), comment: comment.to_owned() })
    }

    /// Returns its line, enabled.
    pub fn line(&self) -> String {
        match self.comment.as_str() {
            "" => self.text.clone(),
            comment => format!("{} # {comment}", self.text),
        }
    }
}

/// The parts of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts<'a> {
    /// `deb` or `deb-src`.
    pub kind: &'a str,
    /// Names and values in brackets, as written.
    pub options: Vec<(&'a str, &'a str)>,
    pub uri: &'a str,
    pub suite: &'a str,
    pub components: Vec<&'a str>,
}

impl<'a> Parts<'a> {
    /// Splits a source as [`Source::text`] has it.
    ///
    /// # Errors
    /// What is missing, for people.
    pub fn of(text: &'a str) -> Result<Self, &'static str> {
        let text = text.trim();
        let (kind, rest) = text.split_once(char::is_whitespace).ok_or("it names no repository")?;
        if !TYPES.contains(&kind) {
            return Err("it begins with neither `deb` nor `deb-src`");
        }
        let mut rest = rest.trim_start();
        let mut options = Vec::new();
        if let Some(inside) = rest.strip_prefix('[') {
            let (inside, after) = inside.split_once(']').ok_or("its options have no `]`")?;
            for option in inside.split_whitespace() {
                options.push(option.split_once('=').ok_or("an option has no `=`")?);
            }
            rest = after.trim_start();
        }
        let mut words = rest.split_whitespace();
        let uri = words.next().ok_or("it names no repository")?;
        // The name of a CD has blanks and no other parts that could be told apart.
        if uri.starts_with("cdrom:") {
            return Ok(Self { kind, options, uri, ..Self::default() });
        }
        if !uri.contains(':') {
            return Err("its address has no protocol, such as `https://`");
        }
        let suite = words.next().ok_or("it names no suite")?;
        let components: Vec<&str> = words.collect();
        match (suite.ends_with('/'), components.is_empty()) {
            (false, true) => Err("it names no component, and its suite does not end with `/`"),
            (true, false) => Err("a suite that ends with `/` goes without components"),
            _ => Ok(Self { kind, options, uri, suite, components }),
        }
    }

    /// Returns the value of an option, whose name is compared in lower case.
    pub fn option(&self, name: &str) -> Option<&'a str> {
        self.options.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }
}

/// A personal package archive of Launchpad: `ppa:owner/name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ppa<'a> {
    pub owner: &'a str,
    pub name: &'a str,
}

impl<'a> Ppa<'a> {
    /// Parses `ppa:owner` or `ppa:owner/name`; `None` for other text.
    pub fn parse(repo: &'a str) -> Option<Self> {
        let path = repo.strip_prefix("ppa:")?;
        let (owner, name) = path.split_once('/').unwrap_or((path, "ppa"));
        let is_name = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-._".contains(c))
        };
        (is_name(owner) && is_name(name)).then_some(Self { owner, name })
    }

    /// Returns the source that it stands for in a release.
    pub fn source(&self, codename: &str) -> String {
        format!("deb https://ppa.launchpadcontent.net/{}/{}/ubuntu {codename} main", self.owner, self.name)
    }
}

/// Returns the name of the file for a new source, as Ansible derives it: from the address, without its protocol, name
/// and password.
pub fn file_name(line: &str, given: Option<&str>) -> String {
    if let Some(given) = given {
        return format!("{given}.list");
    }
    let mut rest = String::with_capacity(line.len());
    let mut left = line;
    while let Some((before, after)) = left.split_once('[') {
        rest.push_str(before);
        match after.split_once(']') {
            Some((inside, after)) if !inside.is_empty() => left = after,
            _ => {
                rest.push('[');
                left = after;
            }
        }
    }
    rest.push_str(left);
    let mut plain = String::with_capacity(rest.len());
    let mut left = rest.as_str();
    while let Some((before, after)) = left.split_once("://") {
        plain.push_str(before.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_'));
        left = after;
    }
    plain.push_str(left);
    let first = plain.split_whitespace().find(|word| !TYPES.contains(word)).unwrap_or_default();
    let first = first.split_once('@').map_or(first, |(_, host)| host);
    let words: Vec<&str> =
        first.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    format!("{}.list", words.join("_"))
}

/// Returns text without names and passwords in its addresses, to be shown.
pub fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut left = text;
    while let Some((before, after)) = left.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        let end = after.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(after.len());
        let (host, rest) = after.split_at_checked(end).unwrap_or((after, ""));
        out.push_str(host.rsplit_once('@').map_or(host, |(_, host)| host));
        left = rest;
    }
    out.push_str(left);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_sources_or_not() {
        let read = |line| Source::parse(line).map(|found| (found.enabled, found.text, found.comment));
        let source = "deb http://a.example stable main";
        assert_eq!(
            read("deb  http://a.example\tstable   main # ours\n"),
            Some((true, source.into(), "ours".into()))
        );
        assert_eq!(read("# deb http://a.example stable main"), Some((false, source.into(), String::new())));
        for line in ["", "# nothing", "debx http://a stable main", "## deb http://a stable main"] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    /// Expected: `_suggest_filename` of Ansible's module, by hand.
    #[test]
    fn file_names_are_those_of_ansible() {
        for (line, name) in [
            ("deb http://archive.canonical.com/ubuntu hardy partner", "archive_canonical_com_ubuntu.list"),
            (
                "deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] https://u:p@nvidia.github.io/libnvidia-container/stable/deb/amd64 /",
                "nvidia_github_io_libnvidia_container_stable_deb_amd64.list",
            ),
            ("deb-src http://a.example/x stable main", "a_example_x.list"),
            ("ppa:graphics-drivers/ppa_jammy", "ppa_graphics_drivers_ppa_jammy.list"),
        ] {
            assert_eq!(file_name(line, None), name);
        }
        assert_eq!(file_name("deb http://a.example s m", Some("cuda")), "cuda.list");
    }

    #[test]
    fn parts_are_complete_or_refused() {
        let parts =
            Parts::of("deb [ arch=amd64 Signed-By=/k.gpg ] https://a.example/x jammy main extra").unwrap();
        assert_eq!(
            (parts.option("signed-by"), parts.uri, parts.suite),
            (Some("/k.gpg"), "https://a.example/x", "jammy")
        );
        assert_eq!(parts.components, ["main", "extra"]);
        assert!(Parts::of("deb https://a.example/x /").unwrap().components.is_empty());
        for wrong in [
            "deb",
            "rpm https://a.example x main",
            "deb https://a.example",
            "deb https://a.example jammy",
            "deb https://a.example x/ main",
            "deb [arch=amd64 https://a.example x main",
            "deb a.example x main",
        ] {
            assert!(Parts::of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn archives_of_launchpad() {
        let ppa = Ppa::parse("ppa:graphics-drivers/ppa").unwrap();
        assert_eq!(
            ppa.source("jammy"),
            "deb https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu jammy main"
        );
        assert_eq!(Ppa::parse("ppa:owner").map(|ppa| ppa.name), Some("ppa"));
        for wrong in ["ppa:", "ppa:../x", "ppa:a/b/c", "ppa:a b/c", "deb x"] {
            assert_eq!(Ppa::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(
            shown("deb https://me:secret@a.example/x jammy main https://b@c"),
            "deb https://a.example/x jammy main https://c"
        );
    }

    proptest! {
        /// What is written reads back the same.
        #[test]
        fn a_line_reads_back(line in "(deb|deb-src) [a-z:/.\\[\\]= ]{1,40}( # ?[a-z# ]{0,10})?") {
            if let Some(source) = Source::parse(&line) {
                let again = Source::parse(&source.line());
                prop_assert_eq!(again, Some(source));
            }
        }

        #[test]
        fn anything_can_be_read(line in any::<String>()) {
            let _ = Source::parse(&line);
            let _ = Parts::of(&line);
            let _ = Ppa::parse(&line);
            let name = file_name(&line, None);
            prop_assert!(!name.contains('/'));
            prop_assert!(shown(&line).len() <= line.len());
        }
    }
}
