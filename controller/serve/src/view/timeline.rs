//! Spans of verdicts, as the numbers of an SVG.

use gpufleet_compliance::Verdict;
use gpufleet_history::Span;
use serde::Serialize;

use super::Moment;

const WIDTH: f64 = 900.0;
/// A span of one audit is to be seen, too.
const NARROWEST: f64 = 3.0;

#[derive(Debug, Serialize)]
pub(crate) struct Timeline {
    width: f64,
    /// The oldest first.
    bars: Vec<Bar>,
    from: Moment,
    to: Moment,
}

#[derive(Debug, Serialize)]
struct Bar {
    verdict: Verdict,
    x: f64,
    width: f64,
    title: String,
}

impl Timeline {
    /// Draws spans, which come the newest first. Between two of them nobody looked: nothing is drawn there.
    pub(crate) fn of(spans: &[Span]) -> Option<Self> {
        let from = spans.iter().map(|span| span.from).min()?;
        let to = spans.iter().map(|span| span.until).max()?;
        #[expect(clippy::cast_precision_loss, reason = "a place in a drawing")]
        let seconds = |at: jiff::Timestamp| (at.as_second() - from.as_second()) as f64;
        let scale = (WIDTH - NARROWEST) / seconds(to).max(1.0);
        let bars = spans.iter().rev().map(|span| {
            let x = seconds(span.from) * scale;
            let width = seconds(span.until).mul_add(scale, -x).max(NARROWEST);
            let (begin, end) = (Moment::from(span.from).text, Moment::from(span.until).text);
            let audits = if span.audits == 1 { "audit" } else { "audits" };
            Bar {
                verdict: span.verdict,
                x: (x * 10.0).round() / 10.0,
                width: (width * 10.0).round() / 10.0,
                title: format!("{}: {begin} – {end}, {} {audits}", span.verdict, span.audits),
            }
        });
        Some(Self { width: WIDTH, bars: bars.collect(), from: from.into(), to: to.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fleet::tests::at;

    #[test]
    fn each_span_has_its_time_and_is_seen() {
        assert!(Timeline::of(&[]).is_none());
        let span = |verdict, from, until, audits| Span { verdict, from: at(from), until: at(until), audits };
        let spans = [span(Verdict::Fail, 100, 100, 1), span(Verdict::Ok, 0, 50, 6)];
        let line = Timeline::of(&spans).unwrap();
        let bars: Vec<_> = line.bars.iter().map(|bar| (bar.verdict, bar.x, bar.width)).collect();
        assert_eq!(bars, [(Verdict::Ok, 0.0, 448.5), (Verdict::Fail, 897.0, 3.0)]);
        assert!(line.bars[1].title.ends_with("1 audit"), "{:?}", line.bars);
    }
}
