//! OpenMetrics text: read with bounds, merged, and written in either form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{Form, SCHEDULE};

/// Bytes of an exposition that are read.
pub const MOST_BYTES: u64 = 256 << 20;
/// Bytes of a line.
const MOST_LINE: usize = 16 << 10;

/// Families by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposition {
    families: BTreeMap<String, Family>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    unit: String,
    /// As it was written, with its escapes.
    help: String,
    samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sample {
    name: String,
    /// With their escapes and without the braces.
    labels: String,
    value: String,
}

/// Why a text is no OpenMetrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ParseError {
    pub line: usize,
    pub why: &'static str,
}

impl Exposition {
    /// Reads OpenMetrics text. With a schedule, each sample gets a label with its name.
    ///
    /// # Errors
    /// The first line that is not as the standard wants it, and a text without its end. Samples with times or exemplars
    /// are refused too, because they would be told as of another time.
    pub fn parse(text: &str, schedule: Option<&str>) -> Result<Self, ParseError> {
        let mut all = Self::default();
        let mut current: Option<String> = None;
        let mut lines = (1..).zip(text.lines());
        for (line, words) in lines.by_ref() {
            let error = |why| ParseError { line, why };
            if words.len() > MOST_LINE {
                return Err(error("it is too long"));
            }
            if words == "# EOF" {
                return match lines.next() {
                    None => Ok(all),
                    Some((line, _)) => Err(ParseError { line, why: "it is behind the end" }),
                };
            }
            if let Some(meta) = words.strip_prefix("# ") {
                let (word, rest) = meta.split_once(' ').ok_or_else(|| error("it says nothing"))?;
                let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                if !is_metric_name(name) {
                    return Err(error("this is no name of a metric"));
                }
                if current.as_deref() != Some(name) {
                    if all.families.contains_key(name) {
                        return Err(error("its family stands above already"));
                    }
                    current = Some(name.to_owned());
                }
                let family = all.families.entry(name.to_owned()).or_default();
                match word {
                    "TYPE" => family.kind = value.to_owned(),
                    "UNIT" => family.unit = value.to_owned(),
                    "HELP" => family.help = value.to_owned(),
                    _ => return Err(error("this is neither TYPE, UNIT nor HELP")),
                }
                continue;
            }
            let sample = Sample::parse(words, schedule).map_err(error)?;
            let of_family = |name: &String| {
                sample.name.strip_prefix(name.as_str()).is_some_and(|suffix| SUFFIXES.contains(&suffix))
            };
            let name = current.as_ref().filter(|name| of_family(name));
            let family = name.and_then(|name| all.families.get_mut(name));
            family.ok_or_else(|| error("the sample belongs to no family"))?.samples.push(sample);
        }
        Err(ParseError { line: text.lines().count(), why: "`# EOF` is missing" })
    }

    /// Brings the samples of each family in the order of their labels.
    pub fn sort(&mut self) {
        for family in self.families.values_mut() {
            family.samples.sort_by(|one, other| (&one.name, &one.labels).cmp(&(&other.name, &other.labels)));
        }
    }

    /// Returns how many samples there are.
    pub fn samples(&self) -> usize {
        self.families.values().map(|family| family.samples.len()).sum()
    }

    /// Returns the text of several in one of the two forms, each family once. Its first one's type and help stand.
    pub fn render(all: &[&Self], form: Form) -> String {
        let mut text = String::new();
        let names: BTreeSet<&String> = all.iter().flat_map(|it| it.families.keys()).collect();
        for name in names {
            let mut families = all.iter().filter_map(|it| it.families.get(name));
            let Some(first) = families.next() else { continue };
            first.render_head(name, form, &mut text);
            first.render_samples(form, &mut text);
            // A family of two types cannot be told.
            for family in families.filter(|family| family.kind == first.kind) {
                family.render_samples(form, &mut text);
            }
        }
        if form == Form::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

/// What names of samples add to the name of their family.
const SUFFIXES: [&str; 7] = ["", "_total", "_created", "_info", "_sum", "_count", "_bucket"];

impl Family {
    fn render_head(&self, name: &str, form: Form, text: &mut String) {
        let (shown, kind) = match (form, self.kind.as_str()) {
            (Form::OpenMetrics, kind) => (name.to_owned(), kind),
            (Form::Text, "counter") => (format!("{name}_total"), "counter"),
            (Form::Text, "info") => (format!("{name}_info"), "gauge"),
            (Form::Text, "stateset") => (name.to_owned(), "gauge"),
            (Form::Text, "unknown" | "") => (name.to_owned(), "untyped"),
            (Form::Text, kind) => (name.to_owned(), kind),
        };
        let kind = if kind.is_empty() { "unknown" } else { kind };
        // Writing to a text cannot fail.
        let _ = writeln!(text, "# TYPE {shown} {kind}");
        if form == Form::OpenMetrics && !self.unit.is_empty() {
            let _ = writeln!(text, "# UNIT {shown} {}", self.unit);
        }
        if !self.help.is_empty() {
            // The older form knows no escape of a quote.
            let help = if form == Form::Text { self.help.replace("\\\"", "\"") } else { self.help.clone() };
            let _ = writeln!(text, "# HELP {shown} {help}");
        }
    }

    fn render_samples(&self, form: Form, text: &mut String) {
        for sample in &self.samples {
            // The older form knows no times of creation.
            if form == Form::Text && sample.name.ends_with("_created") {
                continue;
            }
            let Sample { name, labels, value } = sample;
            let _ = match labels.is_empty() {
                true => writeln!(text, "{name} {value}"),
                false => writeln!(text, "{name}{{{labels}}} {value}"),
            };
        }
    }
}

impl Sample {
    fn parse(line: &str, schedule: Option<&str>) -> Result<Self, &'static str> {
        let end = line.find(['{', ' ']).ok_or("this is no sample")?;
        let (name, rest) = line.split_at(end);
        if !is_metric_name(name) {
            return Err("this is no name of a metric");
        }
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => {
                let end = end_of_labels(rest)?;
                let (labels, rest) = rest.split_at(end);
                (labels, rest.strip_prefix("} ").ok_or("there is no value")?)
            }
            None => ("", rest.strip_prefix(' ').unwrap_or_default()),
        };
        if value.contains(' ') {
            return Err("it has a time or an exemplar");
        }
        if value.parse::<f64>().is_err() {
            return Err("its value is no number");
        }
        let labels = match schedule {
            None => labels.to_owned(),
            Some(schedule) if labels.is_empty() => format!("{SCHEDULE}=\"{schedule}\""),
            Some(schedule) => format!("{SCHEDULE}=\"{schedule}\",{labels}"),
        };
        Ok(Self { name: name.to_owned(), labels, value: value.to_owned() })
    }
}

/// Returns where labels end, and checks each of them.
fn end_of_labels(text: &str) -> Result<usize, &'static str> {
    const OPEN: &str = "its labels do not end";
    let mut at = 0;
    let mut seen: Vec<&str> = Vec::new();
    loop {
        let rest = text.get(at..).ok_or(OPEN)?;
        if rest.starts_with('}') && seen.is_empty() {
            return Ok(at);
        }
        let (name, rest) = rest.split_once("=\"").ok_or(OPEN)?;
        if !is_label_name(name) || seen.contains(&name) {
            return Err("a label has a name that it cannot have");
        }
        seen.push(name);
        let length = end_of_value(rest).ok_or("a label has no end")?;
        at += name.len() + 2 + length + 1;
        match text.as_bytes().get(at) {
            Some(b',') => at += 1,
            Some(b'}') => return Ok(at),
            _ => return Err(OPEN),
        }
    }
}

/// Returns where the quote is that ends a value.
fn end_of_value(text: &str) -> Option<usize> {
    let mut bytes = text.bytes().enumerate();
    loop {
        match bytes.next()? {
            (at, b'"') => return Some(at),
            (_, b'\\') => match bytes.next()? {
                (_, b'\\' | b'"' | b'n') => {}
                _ => return None,
            },
            _ => {}
        }
    }
}

fn is_metric_name(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !text.is_empty()
        && text.len() <= 200
        && text.chars().all(word)
        && !text.starts_with(|c: char| c.is_ascii_digit())
}

fn is_label_name(text: &str) -> bool {
    is_metric_name(text) && !text.contains(':')
}
