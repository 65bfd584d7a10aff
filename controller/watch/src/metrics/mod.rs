//! What `/metrics` says: the watcher's own families, and those of the last audit of each schedule.

mod exposition;
mod own;

pub use self::{
    exposition::{Exposition, MOST_BYTES, ParseError},
    own::{AuditResult, Own},
};

/// The label that tells schedules apart, so that two of them may audit the same node.
pub const SCHEDULE: &str = "schedule";

/// The forms in which metrics are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Text,
}

impl Form {
    /// Chooses by the header `Accept`: OpenMetrics where it is asked for, at least as much as plain text.
    pub fn accepted(header: &str) -> Self {
        let (mut open_metrics, mut text) = (0.0, 0.0);
        for range in header.split(',').take(50) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse().ok());
            let weight: f64 = weight.unwrap_or(0.0);
            match kind.as_str() {
                "application/openmetrics-text" => open_metrics = weight.max(open_metrics),
                "text/plain" | "text/*" | "*/*" => text = weight.max(text),
                _ => {}
            }
        }
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Returns the watcher's own families, encoded, and those of all schedules as one text: each family once.
pub fn render(own: &str, fleet: &[&Exposition], form: Form) -> String {
    let mut own = Exposition::parse(own, None).unwrap_or_default();
    // Its families are in no order of their own.
    own.sort();
    let all: Vec<&Exposition> = std::iter::once(&own).chain(fleet.iter().copied()).collect();
    Exposition::render(&all, form)
}

#[cfg(test)]
mod tests;
