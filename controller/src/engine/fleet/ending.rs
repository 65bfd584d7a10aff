//! How a run ended, and what its last event says of it.

use crate::{
    engine::{host::HostState, ports::confirm::Refusal},
    event::{ABORTED, NOT_CONFIRMED, RunFinished},
    report::fold_names,
    rollout::StopReason,
};

/// Why a run ended before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    Threshold(String),
    /// The maintenance window is over; the rest waits for the next one.
    WindowClosed(String),
    /// Asked to stop; what was under way reached a safe point.
    Interrupted,
    /// Asked to stop twice; nodes were left where they were.
    Aborted,
    /// A person did not agree to what would be disturbed.
    Declined(Refusal),
}

impl Stop {
    /// Of a play whose rollout stopped; `told` is what [`told`] made of the reason.
    pub(crate) fn of(reason: &StopReason, told: String) -> Self {
        match reason {
            StopReason::Interrupted => Self::Interrupted,
            StopReason::WindowClosed { .. } => Self::WindowClosed(told),
            _ => Self::Threshold(told),
        }
    }
}

/// Why a rollout stopped, with the canaries' names and what happened to them: `canary gpu017 failed (no driver)`.
pub(crate) fn told<'a>(reason: &StopReason, host_state: impl Fn(usize) -> Option<&'a HostState>) -> String {
    let (canaries, failed) = reason.canaries();
    let host_states: Vec<&HostState> = canaries.iter().filter_map(|host| host_state(*host)).collect();
    let names: Vec<&str> = host_states.iter().map(|host_state| host_state.name.as_str()).collect();
    if names.is_empty() {
        return reason.to_string();
    }
    let one = names.len() == 1;
    let what = match (failed, one) {
        (true, _) => "failed",
        (false, true) => "was held: it proves nothing",
        (false, false) => "were held: they prove nothing",
    };
    let why =
        host_states.iter().find_map(|host_state| Some((&host_state.name, host_state.message.as_ref()?)));
    let why = why.map_or_else(String::new, |(name, message)| match one {
        true => format!(" ({message})"),
        false => format!(" ({name}: {message})"),
    });
    format!("{} {} {what}{why}", if one { "canary" } else { "canaries" }, fold_names(&names))
}

/// How a run ended; the hosts' ends are in the events.
#[derive(Debug)]
pub struct RunResult {
    pub stop: Option<Stop>,
    pub out_of_service: Vec<String>,
    /// Whether some node waits for a person: to decide, or to bring it back.
    pub held: bool,
}

/// The last event of a run.
pub fn finished(exit_code: u8, summary: String, result: &RunResult, winds_up: bool) -> RunFinished {
    let stopped = result.stop.as_ref().map(|stop| match stop {
        _ if winds_up => ABORTED.to_owned(),
        Stop::Threshold(reason) | Stop::WindowClosed(reason) => reason.clone(),
        Stop::Interrupted | Stop::Declined(Refusal::Interrupted) => "interrupted".to_owned(),
        Stop::Aborted => "left at your word".to_owned(),
        Stop::Declined(Refusal::Declined) => "declined".to_owned(),
        Stop::Declined(Refusal::NobodyToAsk) => NOT_CONFIRMED.to_owned(),
    });
    let goes_on = matches!(result.stop, Some(Stop::Interrupted | Stop::Aborted | Stop::WindowClosed(_)));
    let left = matches!(result.stop, Some(Stop::Aborted));
    // Why also an aborted one that has a held node out: a resume may still give it back. One that failed no resume tries
    // again, so that only the end of this run lets another one take it over.
    let resumable = left
        || match winds_up {
            true => result.held && !result.out_of_service.is_empty(),
            false => goes_on || result.held,
        };
    RunFinished { exit_code, summary, out_of_service: result.out_of_service.clone(), stopped, resumable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_names_the_canary_and_what_happened_to_it() {
        let host_states = ["gpu001", "gpu002", "gpu007"].map(|name| {
            let mut host_state = HostState::new(name.to_owned());
            host_state.message = (name != "gpu001").then(|| format!("the driver of {name} is gone"));
            host_state
        });
        let told = |reason: StopReason| told(&reason, |host| host_states.get(host));
        let failed = |hosts: &[usize]| told(StopReason::Canary { failed: hosts.to_vec() });
        let held = |hosts: &[usize]| told(StopReason::CanaryHeld { held: hosts.to_vec() });
        insta::assert_snapshot!(failed(&[1]), @"canary gpu002 failed (the driver of gpu002 is gone)");
        insta::assert_snapshot!(failed(&[0]), @"canary gpu001 failed");
        insta::assert_snapshot!(failed(&[0, 1, 2]), @"canaries gpu[001,002,007] failed (gpu002: the driver of gpu002 is gone)");
        insta::assert_snapshot!(held(&[1]), @"canary gpu002 was held: it proves nothing (the driver of gpu002 is gone)");
        insta::assert_snapshot!(held(&[0, 2]), @"canaries gpu[001,007] were held: they prove nothing (gpu007: the driver of gpu007 is gone)");
        insta::assert_snapshot!(failed(&[9]), @"a canary failed");
        insta::assert_snapshot!(told(StopReason::AnyError), @"a node failed, and `any_errors_fatal` is set");
    }

    #[test]
    fn an_aborted_run_stays_resumable_while_a_resume_may_give_something_back() {
        let ended = |out: &[&str], held: bool| {
            let out_of_service = out.iter().map(|name| (*name).to_owned()).collect();
            let result = RunResult { stop: Some(Stop::Interrupted), out_of_service, held };
            finished(2, String::new(), &result, true).resumable
        };
        assert!(ended(&["gpu001"], true), "a resume asks its scheduler again");
        assert!(!ended(&["gpu001"], false), "it failed, and no resume tries it again");
        assert!(!ended(&[], true));
    }
}
