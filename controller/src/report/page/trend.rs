//! How the share of compliant nodes went on over earlier audits, as a line.

use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;

use crate::event::EarlierAudit;

/// Size of the drawing, and the space around its line.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 72.0;
const MARGIN: f64 = 8.0;

#[derive(Debug, Serialize)]
pub(super) struct Trend {
    width: f64,
    height: f64,
    /// `x,y x,y`, the oldest first.
    line: String,
    points: Vec<Point>,
    /// The lowest share that the drawing has, in percent.
    floor: f64,
    /// What it shows, in one sentence.
    text: String,
}

#[derive(Debug, Serialize)]
struct Point {
    x: f64,
    y: f64,
    title: String,
}

fn share(audit: &EarlierAudit) -> f64 {
    f64::from(audit.compliant) * 100.0 / f64::from(audit.nodes.max(1))
}

/// Returns a share in percent, rounded down, so that 100 % means all nodes.
fn percent(share: f64) -> String {
    format!("{:.1} %", (share * 10.0).floor() / 10.0)
}

fn date(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC).date().to_string()
}

impl Trend {
    /// Draws earlier audits and this one. `None` where there is nothing to compare with: audits of less than half or more than
    /// twice as many nodes say nothing about the same fleet.
    pub(super) fn of(earlier: &[EarlierAudit], now: EarlierAudit) -> Option<Self> {
        let alike = |audit: &&EarlierAudit| {
            audit.nodes > 0 && audit.nodes >= now.nodes.div_ceil(2) && audit.nodes / 2 <= now.nodes
        };
        let mut audits: Vec<&EarlierAudit> = earlier.iter().filter(alike).collect();
        let (first, last) = (*audits.first()?, *audits.last()?);
        audits.push(&now);
        let lowest = audits.iter().copied().map(share).fold(100.0, f64::min);
        // In steps, so that the scale does not change with every audit.
        let floor = ((lowest / 10.0).floor() * 10.0).min(90.0);
        let step = (WIDTH - 2.0 * MARGIN) / (audits.len() - 1) as f64;
        let high = HEIGHT - 2.0 * MARGIN;
        let points: Vec<Point> = audits
            .iter()
            .enumerate()
            .map(|(at, audit)| Point {
                x: (MARGIN + at as f64 * step).round(),
                y: (MARGIN + (100.0 - share(audit)) / (100.0 - floor) * high).round(),
                title: format!("{}: {} of {} compliant", date(audit.at), audit.compliant, audit.nodes),
            })
            .collect();
        let line: Vec<String> = points.iter().map(|point| format!("{},{}", point.x, point.y)).collect();
        let count = audits.len() - 1;
        let text = format!(
            "Compliant in {count} earlier {} since {}: {} at the lowest, {} the last time, {} now.",
            if count == 1 { "audit" } else { "audits" },
            date(first.at),
            percent(lowest),
            percent(share(last)),
            percent(share(&now)),
        );
        Some(Self { width: WIDTH, height: HEIGHT, line: line.join(" "), points, floor, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit(day: i64, nodes: u32, compliant: u32) -> EarlierAudit {
        EarlierAudit { at: Timestamp::from_second(1_795_000_000 + day * 86_400).unwrap(), nodes, compliant }
    }

    #[test]
    fn a_line_goes_from_the_oldest_audit_to_this_one() {
        let earlier = [audit(0, 100, 80), audit(1, 10, 0), audit(2, 96, 95)];
        let trend = Trend::of(&earlier, audit(3, 100, 100)).unwrap();
        assert_eq!(trend.line, "8,64 320,11 632,8");
        assert_eq!(
            trend.text,
            "Compliant in 2 earlier audits since 2026-11-18: 80.0 % at the lowest, 98.9 % the last time, 100.0 % now."
        );
        assert_eq!(
            trend.points.iter().map(|point| point.title.as_str()).collect::<Vec<_>>(),
            [
                "2026-11-18: 80 of 100 compliant",
                "2026-11-20: 95 of 96 compliant",
                "2026-11-21: 100 of 100 compliant"
            ]
        );
    }

    #[test]
    fn audits_of_another_fleet_are_no_trend() {
        assert!(Trend::of(&[], audit(1, 10, 9)).is_none());
        assert!(Trend::of(&[audit(0, 4, 4), audit(0, 30, 1), audit(0, 0, 0)], audit(1, 10, 9)).is_none());
    }
}
