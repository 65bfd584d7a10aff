//! Questions to the person at the terminal.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, mpsc},
};

use futures::future::BoxFuture;
use gpufleet::{
    display::{self, Style},
    engine::{Confirm, Forecast, Prompt, Refusal, Stepper},
    index::PlayIndex,
    interpreter::Fed,
    journal::{Entry, Record, Replayed},
    visible::visible_lines,
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
            match asked(self.screen.clone(), move || ask(&text)).await {
                Some(true) => Ok(()),
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
            let question = question.clone();
            asked(self.screen.clone(), move || line(&question)).await.flatten()
        })
    }

    #[expect(clippy::print_stderr, reason = "what a pause says to the person at the terminal")]
    fn tell(&self, text: &str) {
        match &self.screen {
            Some(screen) => {
                screen
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .suspend(|| eprintln!("{}", shown(text)));
            }
            None => eprintln!("{}", shown(text)),
        }
    }
}

/// What a person answers, with nothing drawn over the question. Whoever no longer waits for it gets the screen back at
/// once: an interrupt is not held up by a person who does not type.
async fn asked<T: Send + 'static>(
    screen: Option<Arc<Mutex<Screen>>>,
    question: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answers, answer) = mpsc::channel();
    let _withdrawn = Withdraws(answers.clone());
    let wait = move || {
        // Why a thread of its own: a read of a terminal cannot be cancelled, and the process ends without it.
        std::thread::spawn(move || answers.send(Some(question())));
        answer.recv().ok().flatten()
    };
    let waited = tokio::task::spawn_blocking(move || match screen {
        Some(screen) => screen.lock().unwrap_or_else(PoisonError::into_inner).suspend(wait),
        None => wait(),
    });
    waited.await.ok().flatten()
}

/// Ends the wait for an answer when it goes.
struct Withdraws<T>(mpsc::Sender<Option<T>>);

impl<T> Drop for Withdraws<T> {
    fn drop(&mut self) {
        // Why no error: an answer that is there needs no end.
        let _ = self.0.send(None);
    }
}

/// What a playbook says here, without a line that could be taken for a question of ours.
fn shown(text: &str) -> String {
    visible_lines(text).replace('\n', "\n  ")
}

/// The line that a person types.
#[expect(clippy::print_stderr, reason = "the question of a pause")]
fn line(question: &Prompt) -> Option<String> {
    eprint!("{}: ", shown(&question.text));
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

/// `--step`: asks before each task, once for all nodes.
pub struct Steps {
    said: tokio::sync::Mutex<Said>,
}

#[derive(Default)]
struct Said {
    answers: HashMap<(PlayIndex, String), bool>,
    /// `c`: everything else runs.
    all: bool,
}

impl Steps {
    /// What a person said in an earlier process of this run holds.
    pub fn new(records: &[Record]) -> Self {
        let answers = records.iter().filter_map(|record| match &record.what {
            Entry::Replay(Replayed::Fed { play, op_id, fed: Some(fed), .. }) => match **fed {
                Fed::Asked { run } => Some(((*play, op_id.clone()), run)),
                _ => None,
            },
            _ => None,
        });
        let said = Said { answers: answers.collect(), all: false };
        Self { said: tokio::sync::Mutex::new(said) }
    }
}

impl Stepper for Steps {
    fn runs<'a>(&'a self, play: PlayIndex, task: &'a str, title: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            // Why held while a person thinks: the other nodes wait for the same answer.
            let mut said = self.said.lock().await;
            let key = (play, task.to_owned());
            if let Some(run) = said.answers.get(&key) {
                return *run;
            }
            let answer = if said.all {
                Answer::Yes
            } else {
                let title = display::clean(title);
                let (answered, asked) = tokio::sync::oneshot::channel();
                // Why a thread of its own: a run that is stopped does not wait for an answer.
                std::thread::spawn(move || answered.send(ask_task(&title)));
                asked.await.unwrap_or(Answer::No)
            };
            said.all |= answer == Answer::Continue;
            let run = answer != Answer::No;
            said.answers.insert(key, run);
            run
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    No,
    Yes,
    Continue,
}

/// As Ansible reads it: whatever is neither yes nor continue is no.
fn answer(text: &str) -> Answer {
    match text.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Answer::Yes,
        "c" | "continue" => Answer::Continue,
        _ => Answer::No,
    }
}

#[expect(clippy::print_stderr, reason = "the question of a person at the terminal")]
fn ask_task(title: &str) -> Answer {
    eprint!("Perform task: {title} (N)o/(y)es/(c)ontinue: ");
    let mut text = String::new();
    match std::io::stdin().read_line(&mut text) {
        Ok(_) => answer(&text),
        Err(_) => Answer::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_question_that_nobody_waits_for_gives_the_screen_back() {
        let style = Style::default();
        let screen = Arc::new(Mutex::new(Screen::new(true, false, style)));
        let (asks, is_asked) = mpsc::channel();
        let never = move || {
            asks.send(()).unwrap();
            loop {
                std::thread::park();
            }
        };
        let question = tokio::spawn(asked::<()>(Some(Arc::clone(&screen)), never));
        tokio::task::spawn_blocking(move || is_asked.recv().unwrap()).await.unwrap();
        assert!(screen.try_lock().is_err());
        question.abort();
        let freed = tokio::task::spawn_blocking(move || drop(screen.lock().unwrap()));
        tokio::time::timeout(std::time::Duration::from_secs(30), freed).await.unwrap().unwrap();
        assert_eq!(asked(None, || 7).await, Some(7));
    }

    #[test]
    fn only_yes_is_yes() {
        assert_eq!(answer("Y\n"), Answer::Yes);
        assert_eq!(answer(" continue\n"), Answer::Continue);
        for no in ["", "\n", "n", "no", "yeah", "x"] {
            assert_eq!(answer(no), Answer::No, "{no:?}");
        }
    }
}
