//! What an audit reported: the parts of its JSON document that matter here, read with bounds.

use std::{fmt, io::Read};

use gpufleet_compliance::{Action, Severity, Verdict};
use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};

/// Nodes of one audit that are looked at.
pub const MOST_NODES: usize = 100_000;
/// Findings of one node that are looked at; the worst come first.
const MOST_FINDINGS: usize = 2000;
/// Characters of a text that are kept.
const MOST_TEXT: usize = 300;

/// The exit code of an audit that was interrupted.
const INTERRUPTED: u8 = 130;

/// The id of what is about a node itself, such as that it does not answer.
pub const NODE: &str = "node";

/// One audit.
#[derive(Debug, Deserialize)]
pub struct Reading {
    pub run_id: String,
    standing: String,
    pub finished: Option<Timestamp>,
    pub exit_code: u8,
    provenance: Option<Provenance>,
    #[serde(deserialize_with = "nodes")]
    pub nodes: Vec<NodeReading>,
}

#[derive(Debug, Deserialize)]
struct Provenance {
    baseline: Option<Baseline>,
}

#[derive(Debug, Deserialize)]
struct Baseline {
    #[serde(deserialize_with = "text")]
    digest: String,
}

/// What it says of one node.
#[derive(Debug, Deserialize)]
pub struct NodeReading {
    #[serde(skip)]
    pub name: String,
    state: String,
    pub verdict: Verdict,
    pub findings: Bounded<Finding>,
    checks: Option<Checks>,
}

#[derive(Debug, Deserialize)]
struct Checks {
    not_judged: Bounded<NotJudged>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct NotJudged {
    check: String,
    subject: String,
}

/// One thing that keeps a node from being compliant.
#[derive(Clone, Debug, Deserialize)]
pub struct Finding {
    #[serde(deserialize_with = "text")]
    pub control: String,
    #[serde(deserialize_with = "text")]
    pub title: String,
    pub severity: Severity,
    pub verdict: Verdict,
    pub next_action: Action,
    #[serde(deserialize_with = "text")]
    pub subject: String,
    #[serde(deserialize_with = "text")]
    pub text: String,
    pub waived: Option<String>,
    pub explained_by: Option<String>,
}

impl Reading {
    /// Reads a document.
    ///
    /// # Errors
    /// What is no such document, and one of an audit that is not over.
    pub fn read(document: &mut dyn Read) -> Result<Self, String> {
        let mut reader = serde_json::Deserializer::from_reader(std::io::BufReader::new(document));
        let reading =
            Self::deserialize(&mut reader).map_err(|error| format!("its report cannot be read: {error}"))?;
        reader.end().map_err(|_| "its report has something behind its end".to_owned())?;
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if reading.run_id.is_empty() || reading.run_id.len() > 64 || !reading.run_id.chars().all(word) {
            return Err("its report names no run".to_owned());
        }
        match reading.standing.as_str() {
            "finished" => Ok(reading),
            standing => Err(format!("it did not come to its end: {}", shortened(standing))),
        }
    }

    /// Whether the audit came to all of its nodes. One that was interrupted did not.
    pub const fn is_whole(&self) -> bool {
        self.exit_code != INTERRUPTED
    }

    /// The digest of the baseline that judged the nodes; empty where none did, and `None` where that is not known.
    pub fn baseline(&self) -> Option<&str> {
        let baseline = self.provenance.as_ref()?.baseline.as_ref();
        Some(baseline.map_or("", |baseline| baseline.digest.as_str()))
    }

    /// Returns how many nodes have a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.nodes.iter().filter(|node| node.verdict == verdict).count()
    }
}

/// Whether a control is a check. The place of a task has a line: `site.yaml:24`.
pub fn is_check(control: &str) -> bool {
    control != NODE && !control.contains(':')
}

impl NodeReading {
    /// Whether the audit came to its end at this node.
    pub fn was_read(&self) -> bool {
        let states = ["done", "compliant", "drift", "unknown", "failed", "held", "unreachable"];
        states.contains(&self.state.as_str())
    }

    /// Whether the absence of a finding says that it is gone. What was not read may still be there.
    pub fn could_tell(&self, control: &str, subject: &str) -> bool {
        if !self.was_read() || self.findings.cut {
            return false;
        }
        if control == NODE {
            return true;
        }
        // A node that failed or did not answer did not come to all tasks.
        if !is_check(control) {
            return matches!(self.state.as_str(), "done" | "compliant" | "drift");
        }
        let Some(checks) = &self.checks else { return false };
        !checks.not_judged.cut
            && !checks
                .not_judged
                .items
                .iter()
                .any(|it| it.check == control && (it.subject == subject || it.subject.is_empty()))
    }
}

/// Returns the beginning of a text that may be of any length.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MOST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(shortened(&String::deserialize(deserializer)?))
}

/// The first entries of a list.
#[derive(Debug)]
pub struct Bounded<T> {
    pub items: Vec<T>,
    /// Whether there were more.
    pub cut: bool,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FirstOnes(std::marker::PhantomData))
    }
}

/// Reads the first entries of a list, and passes over the others.
struct FirstOnes<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FirstOnes<T> {
    type Value = Bounded<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Bounded<T>, A::Error> {
        let mut all = Bounded { items: Vec::new(), cut: false };
        while all.items.len() < MOST_FINDINGS {
            let Some(item) = items.next_element()? else { return Ok(all) };
            all.items.push(item);
        }
        while items.next_element::<serde::de::IgnoredAny>()?.is_some() {
            all.cut = true;
        }
        Ok(all)
    }
}

fn nodes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NodeReading>, D::Error> {
    struct Nodes;
    impl<'de> Visitor<'de> for Nodes {
        type Value = Vec<NodeReading>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("nodes by name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<NodeReading>, A::Error> {
            let mut all = Vec::new();
            while let Some(name) = map.next_key::<String>()? {
                if all.len() == MOST_NODES {
                    return Err(serde::de::Error::custom("too many nodes"));
                }
                let mut node: NodeReading = map.next_value()?;
                node.name = shortened(&name);
                all.push(node);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_map(Nodes)
}
