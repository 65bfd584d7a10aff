//! `pause`: the play waits on the controller, for a time or for a person.

use std::time::Duration;

use gpufleet_protocol::{OpOutcome, OpStatus, tasks::Pause};
use serde_json::json;

use super::{approval::Prompt, node::NodeTask};
use crate::interpreter::Fed;

/// Ansible's form of a moment: local time with microseconds.
fn moment(at: &jiff::Zoned) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S%.6f").to_string()
}

impl NodeTask {
    /// Waits; gives what Ansible's `pause` gives.
    pub(super) async fn pause_play(&mut self, pause: &Pause) -> Fed {
        // Why its place goes: nothing is done on the node meanwhile.
        drop(self.place.take());
        let begun = tokio::time::Instant::now();
        let started = jiff::Zoned::now();
        let mut outcome = OpOutcome::new(OpStatus::Ok);
        let mut input = String::new();
        let unit = if pause.seconds.is_some() { "seconds" } else { "minutes" };
        match pause.wait_s() {
            Some(seconds) => {
                let text = match &pause.prompt {
                    Some(prompt) => format!("pausing for {seconds} s: {prompt}"),
                    None => format!("pausing for {seconds} s"),
                };
                self.hooks.person.tell(&text);
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
            None => {
                let text = pause.prompt.clone();
                let text = text.unwrap_or_else(|| "Press enter to continue, Ctrl+C to interrupt".to_owned());
                match self.hooks.person.ask(&Prompt { text, echo: pause.echo }).await {
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
            ("stdout", json!(format!("Paused for {:.2} {unit}", shown))),
            ("stderr", json!("")),
            ("echo", json!(pause.echo)),
            ("user_input", json!(input)),
        ];
        outcome.data = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        self.take_place().await;
        Fed::Outcome(Box::new(outcome))
    }
}
