//! A line over time, as the numbers of an SVG.

use jiff::Timestamp;
use serde::Serialize;

use super::Moment;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
/// Room for the labels of the ticks.
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;

/// One value at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub at: Timestamp,
    pub value: f64,
    /// What it is, in words.
    pub title: String,
    /// Where a click on it leads.
    pub href: Option<String>,
    /// It is shown, and is no part of the line: it is of a part of the fleet only.
    pub aside: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Chart {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    /// Of the line: `x,y x,y`.
    line: String,
    points: Vec<Point>,
    ticks: Vec<Tick>,
    from: Moment,
    to: Moment,
    baseline: f64,
}

#[derive(Debug, Serialize)]
struct Point {
    x: f64,
    y: f64,
    title: String,
    href: Option<String>,
    aside: bool,
}

#[derive(Debug, Serialize)]
struct Tick {
    y: f64,
    label: String,
}

impl Chart {
    /// Draws values between two bounds, the oldest first; `None` where there are none.
    pub(crate) fn of(values: &[Value], low: f64, high: f64, label: impl Fn(f64) -> String) -> Option<Self> {
        let (first, last) = (values.first()?.at, values.last()?.at);
        let high = if high > low { high } else { low + 1.0 };
        #[expect(clippy::cast_precision_loss, reason = "a place in a drawing")]
        let seconds = |at: Timestamp| (at.as_second() - first.as_second()) as f64;
        let span = seconds(last).max(1.0);
        let x = |at: Timestamp| {
            let share = if values.len() == 1 { 0.5 } else { seconds(at) / span };
            round(share.mul_add(WIDTH - LEFT - RIGHT, LEFT))
        };
        let y = |value: f64| {
            let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
            round((1.0 - share).mul_add(HEIGHT - TOP - BOTTOM, TOP))
        };
        let points: Vec<Point> = values
            .iter()
            .map(|value| Point {
                x: x(value.at),
                y: y(value.value),
                title: value.title.clone(),
                href: value.href.clone(),
                aside: value.aside,
            })
            .collect();
        let on_line = points.iter().filter(|point| !point.aside);
        let line: Vec<String> = on_line.map(|point| format!("{},{}", point.x, point.y)).collect();
        let ticks =
            [low, f64::midpoint(low, high), high].map(|value| Tick { y: y(value), label: label(value) });
        Some(Self {
            width: WIDTH,
            height: HEIGHT,
            left: LEFT,
            right: WIDTH - RIGHT,
            line: line.join(" "),
            points,
            ticks: ticks.into(),
            from: first.into(),
            to: last.into(),
            baseline: HEIGHT - BOTTOM,
        })
    }
}

/// A tenth of a pixel is enough, and short.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(second: i64, value: f64, aside: bool) -> Value {
        let at = Timestamp::from_second(second).unwrap();
        Value { at, value, title: String::new(), href: None, aside }
    }

    #[test]
    fn values_lie_between_the_bounds_and_in_the_order_of_time() {
        let values =
            [value(0, 50.0, false), value(10, 100.0, false), value(20, 7.0, true), value(40, 75.0, false)];
        let chart = Chart::of(&values, 50.0, 100.0, |value| value.to_string()).unwrap();
        let places: Vec<(f64, f64)> = chart.points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(places, [(52.0, 126.0), (216.0, 10.0), (380.0, 126.0), (708.0, 68.0)]);
        assert_eq!(chart.line, "52,126 216,10 708,68", "without the one aside");
        assert_eq!(
            chart.ticks.iter().map(|tick| tick.label.as_str()).collect::<Vec<_>>(),
            ["50", "75", "100"]
        );
    }

    #[test]
    fn one_value_is_a_chart_and_none_is_not() {
        assert!(Chart::of(&[], 0.0, 1.0, |_| String::new()).is_none());
        let chart = Chart::of(&[value(0, 0.0, false)], 0.0, 0.0, |_| String::new()).unwrap();
        assert_eq!((chart.points[0].x, chart.points[0].y), (380.0, 126.0));
    }
}
