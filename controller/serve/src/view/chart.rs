//! A line over time, as the numbers of an SVG.

use jiff::Timestamp;
use serde::Serialize;

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
    /// It is shown, and is no part of the line: it is of a part of the fleet only.
    pub aside: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Chart {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    /// Where the axis of time lies.
    bottom: f64,
    /// Of the line: `x,y x,y`, in steps, as a value holds until the next audit.
    line: String,
    points: Vec<Point>,
    ticks: Vec<Tick>,
    days: Vec<Day>,
    /// What the values are.
    what: &'static str,
}

#[derive(Debug, Serialize)]
struct Point {
    x: f64,
    y: f64,
    title: String,
    aside: bool,
}

#[derive(Debug, Serialize)]
struct Tick {
    y: f64,
    label: String,
}

/// A label of the axis of time.
#[derive(Debug, Serialize)]
struct Day {
    x: f64,
    label: String,
    anchor: &'static str,
}

/// Most steps between two ticks, and labels of time.
const MOST_TICKS: f64 = 5.0;
const DAYS: i64 = 5;

impl Chart {
    /// Draws values between two bounds, the oldest first; `None` where there are none.
    pub(crate) fn of(
        values: &[Value],
        low: f64,
        high: f64,
        what: &'static str,
        label: impl Fn(f64) -> String,
    ) -> Option<Self> {
        let (first, last) = (values.first()?.at, values.last()?.at);
        let high = if high > low { high } else { low + 1.0 };
        let step = step(high - low);
        let high = low + ((high - low) / step).ceil() * step;
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
                aside: value.aside,
            })
            .collect();
        let mut line: Vec<String> = Vec::new();
        let mut before = None;
        for point in points.iter().filter(|point| !point.aside) {
            line.extend(before.filter(|y| *y != point.y).map(|y| format!("{},{y}", point.x)));
            line.push(format!("{},{}", point.x, point.y));
            before = Some(point.y);
        }
        let mut ticks = Vec::new();
        let mut value = low;
        while value <= high + step / 2.0 {
            ticks.push(Tick { y: y(value), label: label(value) });
            value += step;
        }
        // Within two days the hour matters.
        let form = if span < 2.0 * 86_400.0 { "%m-%d %H:%M" } else { "%Y-%m-%d" };
        let day = |at: i64| {
            let whole = last.as_second() - first.as_second();
            let moment = Timestamp::from_second(first.as_second() + whole * at / DAYS.max(1)).ok()?;
            let anchor = if at == 0 {
                "start"
            } else if at == DAYS {
                "end"
            } else {
                "middle"
            };
            Some(Day { x: x(moment), label: moment.strftime(form).to_string(), anchor })
        };
        let mut days: Vec<Day> = match values.len() {
            1 => vec![Day { x: x(first), label: first.strftime(form).to_string(), anchor: "middle" }],
            _ => (0..=DAYS).filter_map(day).collect(),
        };
        days.dedup_by(|a, b| a.label == b.label);
        Some(Self {
            width: WIDTH,
            height: HEIGHT,
            left: LEFT,
            right: WIDTH - RIGHT,
            line: line.join(" "),
            points,
            ticks,
            days,
            what,
            top: TOP,
            bottom: HEIGHT - BOTTOM,
        })
    }
}

/// Returns a step of 1, 2 or 5 and noughts, so that there are few of them.
fn step(span: f64) -> f64 {
    let rough = (span / MOST_TICKS).max(1.0);
    let tens = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|one| one * tens);
    steps.into_iter().find(|step| *step >= rough).unwrap_or(rough)
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
        Value { at, value, title: String::new(), aside }
    }

    #[test]
    fn values_lie_between_the_bounds_and_in_the_order_of_time() {
        let values =
            [value(0, 50.0, false), value(10, 100.0, false), value(20, 7.0, true), value(40, 75.0, false)];
        let chart = Chart::of(&values, 50.0, 100.0, "share", |value| value.to_string()).unwrap();
        let places: Vec<(f64, f64)> = chart.points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(places, [(52.0, 126.0), (216.0, 10.0), (380.0, 126.0), (708.0, 68.0)]);
        assert_eq!(chart.line, "52,126 216,126 216,10 708,10 708,68", "in steps, without the one aside");
        assert_eq!(
            chart.ticks.iter().map(|tick| tick.label.as_str()).collect::<Vec<_>>(),
            ["50", "60", "70", "80", "90", "100"]
        );
    }

    #[test]
    fn ticks_are_round_and_few() {
        for (span, wanted) in
            [(1.0, 1.0), (4.0, 1.0), (10.0, 2.0), (50.0, 10.0), (100.0, 20.0), (412.0, 100.0)]
        {
            assert_eq!(step(span), wanted, "{span}");
        }
        let day = |day: i64| value(day * 86_400, 412.0, false);
        let chart = Chart::of(&[day(0), day(10)], 0.0, 412.0, "nodes", |value| value.to_string()).unwrap();
        assert_eq!(chart.ticks.last().map(|tick| tick.label.as_str()), Some("500"));
        let days: Vec<&str> = chart.days.iter().map(|day| day.label.as_str()).collect();
        assert_eq!(days.first(), Some(&"1970-01-01"));
        assert_eq!((days.len(), days.last()), (6, Some(&"1970-01-11")));
    }

    #[test]
    fn one_value_is_a_chart_and_none_is_not() {
        assert!(Chart::of(&[], 0.0, 1.0, "", |_| String::new()).is_none());
        let chart = Chart::of(&[value(0, 0.0, false)], 0.0, 0.0, "", |_| String::new()).unwrap();
        assert_eq!((chart.points[0].x, chart.points[0].y), (380.0, 126.0));
    }
}
