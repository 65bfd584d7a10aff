//! The scheduler of a campaign: hooks over files in a case's folder, with a log of their own.
//!
//! Owns the hooks and what their log proves about drains. Must not know gpufleet's records. Times are seconds since
//! the epoch, as in the lab's logs.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::Home;

/// The hooks. A node is held by the link `held/NODE`, whose target is the holder's mark, so that it is created and
/// read in one step. The log has a line before and a line after each change; the time in between counts as either
/// state.
const SCRIPT: &str = r#"
log() { echo "$(date +%s.%N) $1 $GPUFLEET_NODE $GPUFLEET_MARKER" >> log; }
ours() {
  by=$(readlink "held/$GPUFLEET_NODE") || { echo 'not drained'; return 1; }
  test "$by" = "$GPUFLEET_MARKER" || { echo "$by"; return 1; }
}
cordon() {
  log cordoning
  ln -s "$GPUFLEET_MARKER" "held/$GPUFLEET_NODE" 2>/dev/null || ours || return 1
  log cordoned
}
resume() {
  ours || return 1
  log resuming
  rm -f "held/$GPUFLEET_NODE"
  log resumed
}
out() {
  for link in held/*; do
    if test -L "$link"; then echo "${link#held/} $(readlink "$link")"; fi
  done
}
"#;

/// The line of `rollout` that uses the hooks.
pub const DRAIN: &str = "    drain:
      command:
        drain: '. ./scheduler.sh; cordon'
        is_idle: ':'
        resume: '. ./scheduler.sh; resume'
        still_ours: '. ./scheduler.sh; ours'
        out: '. ./scheduler.sh; out'
        timeout: 60s
";

/// The mark of a person at a node that they drained.
pub const PERSON: &str = "alice: bad DIMM";

/// Writes the hooks where the commands of a home run; `theirs` is drained by a person from the beginning.
pub fn install(home: &Home, theirs: Option<&str>) {
    home.write("scheduler.sh", SCRIPT);
    let held = home.work().join("held");
    std::fs::create_dir_all(&held).expect("a folder");
    let mut log = String::new();
    if let Some(node) = theirs {
        std::os::unix::fs::symlink(PERSON, held.join(node)).expect("a link");
        log = format!("0 cordoning {node} {PERSON}\n0 cordoned {node} {PERSON}\n");
    }
    home.write("log", &log);
}

/// Returns the nodes that are drained now, each with its holder's mark.
pub fn held(home: &Home) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(home.work().join("held")).into_iter().flatten().flatten();
    let mut held: Vec<(String, String)> = entries
        .map(|entry| {
            let by = std::fs::read_link(entry.path()).unwrap_or_default();
            (entry.file_name().to_string_lossy().into_owned(), by.to_string_lossy().into_owned())
        })
        .collect();
    held.sort();
    held
}

/// One drain of a node, from before its cordon until after its return.
#[derive(Clone, Debug, Default, PartialEq)]
struct Hold {
    from: f64,
    cordoned: Option<f64>,
    resuming: Option<f64>,
    to: Option<f64>,
}

impl Hold {
    /// Whether the node was certainly drained at this time.
    fn covers(&self, at: f64) -> bool {
        self.cordoned.is_some_and(|from| from <= at) && self.resuming.is_none_or(|to| at <= to)
    }

    fn span(&self) -> (f64, f64) {
        (self.from, self.to.unwrap_or(f64::INFINITY))
    }
}

/// All drains, by node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holds(BTreeMap<String, Vec<Hold>>);

impl Holds {
    /// Reads the log of a case.
    pub fn of(home: &Home) -> Self {
        Self::parse(&std::fs::read_to_string(home.work().join("log")).unwrap_or_default())
    }

    fn parse(log: &str) -> Self {
        let mut all: BTreeMap<String, Vec<Hold>> = BTreeMap::new();
        for line in log.lines() {
            let mut words = line.split(' ');
            let (Some(time), Some(what), Some(node)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Ok(at) = time.parse::<f64>() else { continue };
            let holds = all.entry(node.to_owned()).or_default();
            let open = holds.last_mut().filter(|hold| hold.to.is_none());
            match (what, open) {
                ("cordoning", None) => holds.push(Hold { from: at, ..Hold::default() }),
                ("cordoned", Some(hold)) => _ = hold.cordoned.get_or_insert(at),
                ("resuming", Some(hold)) => _ = hold.resuming.get_or_insert(at),
                ("resumed", Some(hold)) => hold.to = Some(at),
                // A hook of the killed controller may still run beside those of the next one.
                _ => {}
            }
        }
        Self(all)
    }

    /// Returns how often a node was drained.
    pub fn times(&self, node: &str) -> usize {
        self.0.get(node).map_or(0, Vec::len)
    }

    /// Returns forbidden events in the lab's records: a disruptive action outside of a drain, or too many nodes out.
    pub fn judge(&self, outages: &Value, budget: usize) -> Vec<String> {
        let mut problems = Vec::new();
        let mut spans: Vec<(f64, f64)> = Vec::new();
        for (node, history) in outages["nodes"].as_object().into_iter().flatten() {
            let holds = self.0.get(node).map(Vec::as_slice).unwrap_or_default();
            let acts = history["acts"].as_array().into_iter().flatten().filter_map(Value::as_f64);
            let outside: Vec<f64> = acts.filter(|at| !holds.iter().any(|hold| hold.covers(*at))).collect();
            if let Some(at) = outside.first() {
                problems.push(format!(
                    "{node} was acted on {} times while not drained, as at {at:.3}",
                    outside.len()
                ));
            }
            let down = history["down"].as_array().into_iter().flatten();
            let down = down.map(|span| {
                (span[0].as_f64().unwrap_or_default(), span[1].as_f64().unwrap_or(f64::INFINITY))
            });
            spans.extend(merged(holds.iter().map(Hold::span).chain(down).collect()));
        }
        let most = peak(&spans);
        if most > budget {
            problems.push(format!("{most} nodes were drained or down at once; {budget} may be"));
        }
        problems
    }
}

/// Returns the spans without overlaps.
fn merged(mut spans: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut whole: Vec<(f64, f64)> = Vec::new();
    for (from, to) in spans {
        match whole.last_mut().filter(|last| from <= last.1) {
            Some(last) => last.1 = last.1.max(to),
            None => whole.push((from, to)),
        }
    }
    whole
}

/// Returns the largest number of spans at one instant; a span that ends when another begins does not overlap it.
fn peak(spans: &[(f64, f64)]) -> usize {
    let mut steps: Vec<(f64, i32)> = spans.iter().flat_map(|(from, to)| [(*from, 1), (*to, -1)]).collect();
    steps.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut now = 0;
    let counts = steps.iter().map(|(_, step)| {
        now += step;
        now
    });
    usize::try_from(counts.max().unwrap_or(0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LOG: &str = "1.0 cordoning a m\n1.5 cordoned a m\n2.0 cordoning b m\n2.1 cordoned b m\n\
                       4.0 resuming a m\n4.5 resumed a m\n4.6 resuming a m\n4.7 resumed a m\nhalf";

    fn seen(acts: &Value, down: &Value) -> Value {
        json!({"nodes": {"a": {"acts": acts, "down": down}, "b": {"acts": [], "down": []}, "c": {"acts": [], "down": []}}})
    }

    #[test]
    fn a_drain_lasts_from_its_cordon_to_its_return() {
        let holds = Holds::parse(LOG);
        assert_eq!((holds.times("a"), holds.times("b"), holds.times("c")), (1, 1, 0));
        assert_eq!(holds.0["a"][0].span(), (1.0, 4.5));
        assert_eq!(holds.0["b"][0].span(), (2.0, f64::INFINITY), "it is out until somebody gives it back");
    }

    #[test]
    fn an_act_outside_of_a_drain_is_found() {
        let holds = Holds::parse(LOG);
        assert!(holds.judge(&seen(&json!([1.6, 3.9]), &json!([[2.0, 3.0]])), 2).is_empty());
        for at in [0.5, 1.2, 4.2, 5.0] {
            let problems = holds.judge(&seen(&json!([at]), &json!([])), 2);
            assert_eq!(problems, [format!("a was acted on 1 times while not drained, as at {at:.3}")]);
        }
    }

    #[test]
    fn a_node_that_is_drained_and_down_is_out_once() {
        let holds = Holds::parse(LOG);
        assert!(holds.judge(&seen(&json!([]), &json!([[3.0, 9.0]])), 2).is_empty());
        let problems = holds.judge(&seen(&json!([]), &json!([[3.0, Value::Null]])), 1);
        assert_eq!(problems, ["2 nodes were drained or down at once; 1 may be"]);
        let other = json!({"nodes": {"a": {}, "b": {}, "c": {"down": [[3.0, 3.1]]}}});
        assert_eq!(holds.judge(&other, 2), ["3 nodes were drained or down at once; 2 may be"]);
    }
}
