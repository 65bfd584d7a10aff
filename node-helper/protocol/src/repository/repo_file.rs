//! Files of dnf below /etc/yum.repos.d: sections of options, in the form that dnf and Python's `configparser` read.
//!
//! One section is replaced or removed, and everything else stays as it is, byte for byte.

use std::ops::Range;

/// One repository of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    /// Options with names in lower case; values of several lines have them joined by line breaks.
    pub options: Vec<(String, String)>,
    /// From its header to its last option, in bytes.
    range: Range<usize>,
}

/// Parses a file.
///
/// # Errors
/// A line that no reader would take, and a section that comes twice, for people.
pub fn sections(text: &str) -> Result<Vec<Section>, String> {
    let mut all: Vec<Section> = Vec::new();
    // The indentation of the option that further lines may belong to.
    let mut option: Option<usize> = None;
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let start = at;
        at += line.len();
        let body = line.trim();
        if body.is_empty() || body.starts_with(['#', ';']) {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let place = || format!("line {}", number + 1);
        if option.is_some_and(|above| indent > above) {
            if let Some((_, value)) = all.last_mut().and_then(|section| {
                section.range.end = at;
                section.options.last_mut()
            }) {
                value.push('\n');
                value.push_str(body);
            }
            continue;
        }
        if let Some(name) =
            body.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')).map(|(name, _)| name)
        {
            if all.iter().any(|section| section.name == name) {
                return Err(format!("{}: [{name}] is there twice", place()));
            }
            all.push(Section { name: name.to_owned(), options: Vec::new(), range: start..at });
            option = None;
            continue;
        }
        let Some(section) = all.last_mut() else {
            return Err(format!("{}: `{body}` stands before the first section", place()));
        };
        let Some((name, value)) = body.split_once(['=', ':']) else {
            return Err(format!("{}: `{body}` is no option", place()));
        };
        section.options.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        section.range.end = at;
        option = Some(indent);
    }
    Ok(all)
}

impl Section {
    /// Whether it has exactly these options; the last of several with one name counts.
    pub fn has(&self, options: &[(String, String)]) -> bool {
        let sorted = |options: &[(String, String)]| {
            let map: std::collections::BTreeMap<String, String> = options.iter().cloned().collect();
            map
        };
        sorted(&self.options) == sorted(options)
    }

    /// Returns its lines in a file.
    pub fn text<'t>(&self, file: &'t str) -> &'t str {
        file.get(self.range.clone()).unwrap_or_default()
    }
}

/// Writes a section as `configparser` does.
pub fn written(name: &str, options: &[(String, String)]) -> String {
    let mut out = format!("[{name}]\n");
    for (name, value) in options {
        out.push_str(&format!("{name} = {}\n", value.replace('\n', "\n\t")));
    }
    out
}

/// Returns the file with a section in place of the old one, or at its end.
///
/// # Errors
/// As [`sections`].
pub fn with_section(text: &str, name: &str, options: &[(String, String)]) -> Result<String, String> {
    let new = written(name, options);
    let found = sections(text)?.into_iter().find(|section| section.name == name);
    Ok(match found {
        Some(old) => {
            let before = text.get(..old.range.start).unwrap_or_default();
            let after = text.get(old.range.end..).unwrap_or_default();
            format!("{before}{new}{after}")
        }
        None => {
            let gap = match text {
                "" => "",
                text if text.ends_with("\n\n") => "",
                text if text.ends_with('\n') => "\n",
                _ => "\n\n",
            };
            format!("{text}{gap}{new}\n")
        }
    })
}

/// Returns the file without a section; `None` if no section would be left.
///
/// # Errors
/// As [`sections`].
pub fn without_section(text: &str, name: &str) -> Result<Option<String>, String> {
    let all = sections(text)?;
    if all.iter().all(|section| section.name == name) {
        return Ok(None);
    }
    let Some(old) = all.into_iter().find(|section| section.name == name) else {
        return Ok(Some(text.to_owned()));
    };
    let before = text.get(..old.range.start).unwrap_or_default();
    let after = text.get(old.range.end..).unwrap_or_default();
    // The blank line behind it goes with it.
    Ok(Some(format!("{before}{}", after.strip_prefix('\n').unwrap_or(after))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: &str = "# ours\n[epel]\nname=EPEL\n# a mirror\nbaseurl = http://a\n\thttp://b\n\n# of cuda\n[cuda]\nName: CUDA\n";

    fn options(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn other_sections_and_comments_stay() {
        let all = sections(FILE).unwrap();
        assert_eq!(all[0].options, options(&[("name", "EPEL"), ("baseurl", "http://a\nhttp://b")]));
        assert!(all[1].has(&options(&[("name", "CUDA")])));
        let new = with_section(FILE, "epel", &options(&[("baseurl", "x\ny"), ("name", "n")])).unwrap();
        assert_eq!(new, "# ours\n[epel]\nbaseurl = x\n\ty\nname = n\n\n# of cuda\n[cuda]\nName: CUDA\n");
        assert_eq!(
            without_section(&new, "cuda").unwrap().unwrap(),
            "# ours\n[epel]\nbaseurl = x\n\ty\nname = n\n\n# of cuda\n"
        );
        assert_eq!(without_section("[a]\nname=1\n", "a").unwrap(), None);
        assert_eq!(
            with_section("[a]\nname = 1\n", "b", &options(&[("name", "2")])).unwrap(),
            "[a]\nname = 1\n\n[b]\nname = 2\n\n"
        );
    }

    #[test]
    fn what_is_no_file_of_repositories_is_named() {
        assert_eq!(sections("name=1\n").unwrap_err(), "line 1: `name=1` stands before the first section");
        assert_eq!(sections("[a]\nnonsense\n").unwrap_err(), "line 2: `nonsense` is no option");
        assert_eq!(sections("[a]\n[b]\n[a]\n").unwrap_err(), "line 3: [a] is there twice");
    }

    proptest! {
        #[test]
        fn a_written_section_reads_back(
            before in prop::sample::select(vec!["", "[x]\nname=1\n", "[x]\nname=1", "# c\n\n[x]\nb = 1\n 2\n\n[own]\nold=1\n\n[z]\nq=1\n"]),
            values in prop::collection::btree_map("[a-z_]{1,6}", "[a-z:/=$]{1,9}(\n[a-z]{1,5}){0,2}", 1..5),
        ) {
            let wanted: Vec<(String, String)> = values.into_iter().collect();
            let file = with_section(before, "own", &wanted).unwrap();
            let read = sections(&file).unwrap();
            let own = read.iter().find(|section| section.name == "own").unwrap();
            prop_assert!(own.has(&wanted), "{file}");
            let others = |text: &str| -> Vec<(String, Vec<(String, String)>)> {
                sections(text).unwrap().into_iter().filter(|s| s.name != "own").map(|s| (s.name, s.options)).collect()
            };
            prop_assert_eq!(others(before), others(&file));
            let gone = without_section(&file, "own").unwrap().unwrap_or_default();
            prop_assert_eq!(others(before), others(&gone));
        }

        #[test]
        fn anything_can_be_read(text in any::<String>()) {
            let _ = sections(&text);
            let _ = with_section(&text, "x", &[]);
            let _ = without_section(&text, "x");
        }
    }
}
