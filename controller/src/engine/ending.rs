//! How a run ended, and what its last event says of it.

use super::approval::Refusal;
use crate::{event::RunFinished, rollout::StopReason};

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
    /// Of a play whose rollout stopped.
    pub(super) fn of(reason: &StopReason) -> Self {
        match reason {
            StopReason::Interrupted => Self::Interrupted,
            StopReason::WindowClosed { .. } => Self::WindowClosed(reason.to_string()),
            _ => Self::Threshold(reason.to_string()),
        }
    }
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
        _ if winds_up => "aborted".to_owned(),
        Stop::Threshold(reason) | Stop::WindowClosed(reason) => reason.clone(),
        Stop::Interrupted | Stop::Declined(Refusal::Interrupted) => "interrupted".to_owned(),
        Stop::Aborted => "left at your word".to_owned(),
        Stop::Declined(Refusal::Declined) => "declined".to_owned(),
        Stop::Declined(Refusal::NobodyToAsk) => {
            "not confirmed: --yes is needed without a terminal".to_owned()
        }
    });
    let goes_on = matches!(result.stop, Some(Stop::Interrupted | Stop::Aborted | Stop::WindowClosed(_)));
    let left = matches!(result.stop, Some(Stop::Aborted));
    // Why also an aborted one that has nodes out: only the run that drained them may give them back.
    let unfinished = !winds_up || !result.out_of_service.is_empty();
    let resumable = left || (unfinished && (goes_on || result.held));
    RunFinished { exit_code, summary, out_of_service: result.out_of_service.clone(), stopped, resumable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aborted_run_stays_resumable_while_it_has_nodes_out() {
        let ended = |out: &[&str]| {
            let out_of_service = out.iter().map(|name| (*name).to_owned()).collect();
            let result = RunResult { stop: Some(Stop::Interrupted), out_of_service, held: true };
            finished(2, String::new(), &result, true).resumable
        };
        assert!(ended(&["gpu001"]), "only this run may give it back");
        assert!(!ended(&[]));
    }
}
