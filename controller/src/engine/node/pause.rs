//! `pause`: the play waits on the controller, for a time or for a person.

use std::time::Duration;

use gpufleet_protocol::{OpOutcome, OpStatus, message::streams, tasks::Pause};
use serde_json::json;

use crate::{
    engine::{
        node::{driver::NodeDriver, early_end::EarlyEnd},
        ports::confirm::Prompt,
    },
    interpreter::Fed,
};

/// Ansible's form of a moment: local time with microseconds.
fn moment(at: &jiff::Zoned) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S%.6f").to_string()
}

impl NodeDriver {
    /// Waits; gives what Ansible's `pause` gives.
    ///
    /// # Errors
    /// The run was told to stop meanwhile: whoever takes it up again is asked again, or waits again.
    pub(crate) async fn pause_play(&mut self, pause: &Pause) -> Result<Fed, EarlyEnd> {
        // Why its place goes: nothing is done on the node meanwhile.
        drop(self.custody.node.dispatcher.place.take());
        let begun = tokio::time::Instant::now();
        let started = jiff::Zoned::now();
        let mut outcome = OpOutcome::new(OpStatus::Ok);
        let mut input = String::new();
        let stops = self.custody.node.dispatcher.stops();
        let unit = if pause.seconds.is_some() { "seconds" } else { "minutes" };
        match pause.wait_s() {
            Some(seconds) => {
                let text = match &pause.prompt {
                    Some(prompt) => format!("pausing for {seconds} s: {prompt}"),
                    None => format!("pausing for {seconds} s"),
                };
                self.custody.node.settings.hooks.person.tell(&format!("{text}; Ctrl-C stops the run here"));
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
                    // Why not one that is out of service: it has to get to a safe point.
                    () = stops, if !self.custody.node.is_out() => return Err(EarlyEnd::Stopped),
                }
            }
            None => {
                let text = pause.prompt.clone();
                let text = text.unwrap_or_else(|| "Press enter to continue, Ctrl+C to interrupt".to_owned());
                let question = Prompt { text, echo: pause.echo };
                let answer = tokio::select! {
                    answer = self.custody.node.settings.hooks.person.ask(&question) => answer,
                    // Why at once: what a person would be told of the stop cannot be shown beside a question.
                    () = stops => return Err(self.unanswered()),
                };
                match answer {
                    Some(answer) => input = answer,
                    None => outcome
                        .warnings
                        .push("Not waiting for response to prompt as stdin is not interactive".to_owned()),
                }
            }
        }
        let took = begun.elapsed();
        let shown = if unit == "seconds" { took.as_secs_f64() } else { took.as_secs_f64() / 60.0 };
        let values = [
            ("start", json!(moment(&started))),
            ("stop", json!(moment(&jiff::Zoned::now()))),
            ("delta", json!(took.as_secs())),
            ("rc", json!(0)),
            ("echo", json!(pause.echo)),
            ("user_input", json!(input)),
        ];
        outcome.data = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        outcome.data.extend(streams(&format!("Paused for {shown:.2} {unit}"), ""));
        self.custody.node.dispatcher.take_place().await;
        Ok(Fed::Outcome(Box::new(outcome)))
    }

    fn unanswered(&self) -> EarlyEnd {
        match self.custody.node.is_out() {
            true => EarlyEnd::Held(
                "the run was stopped at a `pause` that waits for a person, while it was out of service"
                    .to_owned(),
            ),
            false => EarlyEnd::Stopped,
        }
    }
}
