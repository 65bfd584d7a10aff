//! Questions to the person at the terminal.

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use gpufleet::{
    display::{self, Style},
    engine::{Confirm, Forecast, Prompt, Refusal},
};

use super::sinks::Screen;

/// Asks before nodes are disturbed.
pub struct Question {
    /// `--yes`.
    pub blanket: bool,
    pub on_terminal: bool,
    pub style: Style,
    pub screen: Option<Arc<Mutex<Screen>>>,
}

impl Confirm for Question {
    fn confirm<'a>(&'a self, forecast: &'a Forecast) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            if !self.on_terminal {
                return Err(Refusal::NobodyToAsk);
            }
            let mut classes = std::collections::BTreeMap::<_, Vec<String>>::new();
            for (host, class) in &forecast.disturbed {
                classes.entry(*class).or_default().push(host.clone());
            }
            let text = display::confirm_text(&classes, &self.style).unwrap_or_default();
            let screen = self.screen.clone();
            let asked = tokio::task::spawn_blocking(move || match screen {
                Some(screen) => screen.lock().unwrap_or_else(PoisonError::into_inner).suspend(|| ask(&text)),
                None => ask(&text),
            });
            match asked.await {
                Ok(true) => Ok(()),
                _ => Err(Refusal::Declined),
            }
        })
    }

    fn is_blanket(&self) -> bool {
        self.blanket
    }

    fn ask<'a>(&'a self, question: &'a Prompt) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            if !self.on_terminal {
                return None;
            }
            let (screen, question) = (self.screen.clone(), question.clone());
            let asked = tokio::task::spawn_blocking(move || match screen {
                Some(screen) => {
                    screen.lock().unwrap_or_else(PoisonError::into_inner).suspend(|| line(&question))
                }
                None => line(&question),
            });
            asked.await.ok().flatten()
        })
    }

    #[expect(clippy::print_stderr, reason = "what a pause says to the person at the terminal")]
    fn tell(&self, text: &str) {
        match &self.screen {
            Some(screen) => {
                screen.lock().unwrap_or_else(PoisonError::into_inner).suspend(|| eprintln!("{text}"));
            }
            None => eprintln!("{text}"),
        }
    }
}

/// The line that a person types.
#[expect(clippy::print_stderr, reason = "the question of a pause")]
fn line(question: &Prompt) -> Option<String> {
    eprint!("{}: ", question.text);
    if !question.echo {
        return rpassword::read_password().ok();
    }
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).ok()?;
    Some(answer.trim_end_matches(['\r', '\n']).to_owned())
}

#[expect(clippy::print_stderr, reason = "the question of a person at the terminal")]
fn ask(text: &str) -> bool {
    eprint!("{text}\nProceed? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
