//! Writes metric families in OpenMetrics 1.0 text, or in the older text format of Prometheus.
//!
//! Source: the OpenMetrics specification 1.0.0; Prometheus' exposition formats, text 0.0.4, the only one that the textfile
//! collector of node_exporter reads (it knows no state sets, infos and units). Why not the encoder of `prometheus-client`, which the workspace has: it
//! knows no state sets, and its families are registered once and live on, while these are made anew from the model of
//! a run. Samples have no time of their own: the textfile collector of node_exporter refuses a file with times, and
//! the time of each reading is a family.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::visible::visible;

/// Characters of a label's value. Longer ones are cut, and marked so that two of them stay two.
const MOST_LABEL: usize = 128;

/// The two formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    #[default]
    OpenMetrics,
    Text,
}

/// What the samples of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
    Info,
    StateSet,
}

impl Kind {
    const fn word(self, form: Form) -> &'static str {
        match (self, form) {
            (Self::Counter, _) => "counter",
            (Self::Gauge, _) | (_, Form::Text) => "gauge",
            (Self::Info, Form::OpenMetrics) => "info",
            (Self::StateSet, Form::OpenMetrics) => "stateset",
        }
    }

    /// What the name of a sample has behind the name of its family.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Gauge | Self::StateSet => "",
            Self::Counter => "_total",
            Self::Info => "_info",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Empty without one; otherwise the end of the name.
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
}

/// A document that grows family by family.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
    form: Form,
    /// The family whose samples are being written.
    current: Option<&'static str>,
}

impl Exposition {
    pub(super) fn new(form: Form) -> Self {
        Self { form, ..Self::default() }
    }

    /// Writes one sample. All samples of a family come one after the other; a family without any is left out.
    ///
    /// A value that is not finite, and a counter below 0, is no reading, and is left out.
    pub(super) fn sample(&mut self, family: &Family, labels: &[(&str, &str)], value: f64) {
        if !value.is_finite() || (family.kind == Kind::Counter && value < 0.0) {
            return;
        }
        if self.current != Some(family.name) {
            self.current = Some(family.name);
            self.header(family);
        }
        let text = &mut self.text;
        text.push_str(family.name);
        text.push_str(family.kind.suffix());
        let mut before = '{';
        for (name, value) in labels {
            text.push(before);
            text.push_str(name);
            text.push_str("=\"");
            escape(value, text);
            text.push('"');
            before = ',';
        }
        if !labels.is_empty() {
            text.push('}');
        }
        // Infallible, as all writes here: a `String` takes all that is written to it.
        let _ = writeln!(text, " {value}");
    }

    /// Writes which of all states one thing is in.
    pub(super) fn states<'a>(
        &mut self,
        family: &Family,
        labels: &[(&str, &str)],
        all: impl IntoIterator<Item = &'a str>,
        current: &str,
    ) {
        let mut labels = labels.to_vec();
        for state in all {
            labels.push((family.name, state));
            self.sample(family, &labels, if state == current { 1.0 } else { 0.0 });
            labels.pop();
        }
    }

    fn header(&mut self, family: &Family) {
        let Family { name, kind, unit, help } = family;
        // The older format has the headers of what it sees: the names of samples.
        let suffix = if self.form == Form::Text { kind.suffix() } else { "" };
        let _ = writeln!(self.text, "# TYPE {name}{suffix} {}", kind.word(self.form));
        if !unit.is_empty() && self.form == Form::OpenMetrics {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {name}{suffix} {help}");
    }

    pub(super) fn finish(mut self) -> String {
        if self.form == Form::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

fn escape(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// Returns a text as the value of a label: visible characters, and not many. Texts that differ have values that differ.
pub(super) fn label(text: &str) -> String {
    let shown = visible(text);
    if shown == text && text.chars().nth(MOST_LABEL).is_none() {
        return shown.into_owned();
    }
    let mark: String = Sha256::digest(text).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}~{mark}", shown.chars().take(MOST_LABEL).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: Form) -> String {
        let watts = Family { name: "x_watts", kind: Kind::Gauge, unit: "watts", help: "Power." };
        let total = Family { name: "y", kind: Kind::Counter, unit: "", help: "Errors." };
        let state = Family { name: "z", kind: Kind::StateSet, unit: "", help: "State." };
        let mut out = Exposition::new(form);
        out.sample(&watts, &[("gpu", "a\"b\\c\nd")], 90.5);
        out.sample(&watts, &[], 3.0);
        out.sample(&watts, &[], f64::NAN);
        out.sample(&total, &[], -1.0);
        out.sample(&total, &[("gpu", "0")], 1e12);
        out.states(&state, &[("node", "a")], ["ok", "fail"], "fail");
        out.finish()
    }

    #[test]
    fn families_have_their_header_once_and_values_are_escaped() {
        insta::assert_snapshot!(written(Form::OpenMetrics), @r##"
        # TYPE x_watts gauge
        # UNIT x_watts watts
        # HELP x_watts Power.
        x_watts{gpu="a\"b\\c\nd"} 90.5
        x_watts 3
        # TYPE y counter
        # HELP y Errors.
        y_total{gpu="0"} 1000000000000
        # TYPE z stateset
        # HELP z State.
        z{node="a",z="ok"} 0
        z{node="a",z="fail"} 1
        # EOF
        "##);
    }

    #[test]
    fn the_older_format_knows_gauges_and_counters_only() {
        insta::assert_snapshot!(written(Form::Text), @r##"
        # TYPE x_watts gauge
        # HELP x_watts Power.
        x_watts{gpu="a\"b\\c\nd"} 90.5
        x_watts 3
        # TYPE y_total counter
        # HELP y_total Errors.
        y_total{gpu="0"} 1000000000000
        # TYPE z gauge
        # HELP z State.
        z{node="a",z="ok"} 0
        z{node="a",z="fail"} 1
        "##);
    }

    #[test]
    fn labels_are_bounded_and_stay_apart() {
        assert_eq!(label("gpu001"), "gpu001");
        let long = "x".repeat(5000);
        assert!(label(&long).len() < 150);
        assert_ne!(label(&long), label(&format!("{long}y")));
        assert_ne!(label("a\u{1b}"), label("a\\u001b"));
    }
}
