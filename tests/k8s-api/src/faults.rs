//! Faults on demand: rules for requests, and states of the whole server.

use serde::{Deserialize, Serialize};

use crate::settings::Span;

/// The effect of a fault on a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// The connection ends before the server has acted.
    CutBefore,
    /// The server has acted; the connection ends without a reply.
    CutAfter,
    /// The server has acted; the connection ends in the middle of the reply's body.
    CutReply,
    /// 409 without having acted.
    Conflict,
    /// 500 without having acted.
    Internal,
    /// 504 after having acted: the client cannot know.
    TimeoutAfter,
    /// 503 of a server that starts or stops.
    Unavailable,
    /// 429 of API priority and fairness: plain text, and `Retry-After` in seconds.
    Overload { retry_after_s: u32 },
    /// 401 although the token is good.
    Unauthorized,
    /// The server acts at once; the reply comes after this time on its clock.
    SlowReply { by: Span },
    /// The server acts after this time on its clock.
    SlowAction { by: Span },
    /// A watch that never ends and sends nothing.
    SilentWatch,
    /// Every event of a watch is delayed by this time.
    SlowWatch { by: Span },
    /// A watch that ends at once with 410.
    ExpiredWatch,
    /// A watch whose connection breaks after this time.
    BrokenWatch { after: Span },
}

/// A fault and the requests that it applies to; an empty field matches anything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub action: Action,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `evict`.
    #[serde(default)]
    pub verb: String,
    /// `pods`, `nodes`, …
    #[serde(default)]
    pub resource: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub user: String,
    /// Number of matching requests before it begins.
    #[serde(default)]
    pub skip: u32,
    /// Number of requests that it applies to; all by default.
    #[serde(default)]
    pub times: Option<u32>,
}

impl Fault {
    pub fn new(action: Action) -> Self {
        Self {
            action,
            verb: String::new(),
            resource: String::new(),
            name: String::new(),
            user: String::new(),
            skip: 0,
            times: None,
        }
    }

    pub fn verb(mut self, verb: &str) -> Self {
        verb.clone_into(&mut self.verb);
        self
    }

    pub fn resource(mut self, resource: &str) -> Self {
        resource.clone_into(&mut self.resource);
        self
    }

    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    pub fn skip(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }
}

/// How the server treats connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    #[default]
    Up,
    /// Connections are refused, and open ones are gone.
    Refused,
    /// Connections are accepted, and nothing is ever sent.
    Silent,
}

#[derive(Debug, Default)]
pub struct Faults {
    pub rules: Vec<Fault>,
    pub reach: Reach,
    /// When the server becomes reachable again by itself.
    pub until_ms: Option<i64>,
}

impl Faults {
    /// Returns the fault for a request, if any; a rule counts only matching requests.
    pub fn meet(&mut self, verb: &str, resource: &str, name: &str, user: &str) -> Option<Action> {
        let fits = |rule: &str, value: &str| rule.is_empty() || rule == value;
        for rule in &mut self.rules {
            let watch = matches!(
                rule.action,
                Action::SilentWatch
                    | Action::SlowWatch { .. }
                    | Action::ExpiredWatch
                    | Action::BrokenWatch { .. }
            );
            let met = fits(&rule.verb, verb)
                && fits(&rule.resource, resource)
                && fits(&rule.name, name)
                && fits(&rule.user, user);
            if !met || (watch && verb != "watch") || rule.times == Some(0) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            if let Some(times) = &mut rule.times {
                *times -= 1;
            }
            return Some(rule.action.clone());
        }
        None
    }

    /// Returns how the server is reachable at a time.
    pub fn reach(&mut self, now_ms: i64) -> Reach {
        if self.until_ms.is_some_and(|until| now_ms >= until) {
            self.until_ms = None;
            self.reach = Reach::Up;
        }
        self.reach
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_skips_and_counts_only_what_it_fits() {
        let mut faults = Faults::default();
        faults.rules.push(Fault::new(Action::Internal).verb("evict").skip(1).times(2));
        let mut meet = |verb: &str| faults.meet(verb, "pods", "a", "u").is_some();
        assert!(
            !meet("get")
                && !meet("evict")
                && meet("evict")
                && !meet("list")
                && meet("evict")
                && !meet("evict")
        );
    }

    #[test]
    fn a_server_comes_back_by_itself() {
        let mut faults = Faults { reach: Reach::Refused, until_ms: Some(60), ..Faults::default() };
        assert_eq!(
            (faults.reach(59), faults.reach(60), faults.reach(61)),
            (Reach::Refused, Reach::Up, Reach::Up)
        );
    }
}
