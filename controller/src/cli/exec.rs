//! `exec PATTERN -- COMMAND`: one program on many nodes at once, and its answers as they come.

use std::{collections::BTreeSet, time::Duration};

use futures::{Stream, StreamExt, stream};
use gpufleet::{
    display::{self, ExecResult},
    engine::Connector,
    report::fold_names,
};
use gpufleet_protocol::{
    FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus,
    op::{Exec, Program},
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    adhoc::{Reach, Target, call, exit_code, reach, request},
    args::{ExecArgs, Format},
    engine,
    environment::Environment,
    error::CommandError,
    output::Output,
};

/// How long a command may take unless `--task-timeout` says otherwise, in seconds. Shorter than a task of a play: a person waits.
const COMMAND_S: u64 = 10 * 60;
/// So long equal answers are collected, to be shown once; then each is shown as it comes, and who is waited for is named.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time between two lines that name who is waited for; the first ones come sooner.
const REMINDER: Duration = Duration::from_secs(60);
const INTERRUPTED: u8 = 130;

/// What is told while nodes are asked, by their places.
enum Told<'a, T> {
    Answers(Vec<(usize, T)>),
    /// Whom it waits for, and how long it does.
    Waiting(&'a BTreeSet<usize>, Duration),
}

/// Takes the answers of `count` nodes until all are there or somebody interrupts; returns who has not answered.
async fn gather<T>(
    answers: impl Stream<Item = (usize, T)>,
    count: usize,
    interrupts: &mut mpsc::Receiver<()>,
    mut tell: impl FnMut(Told<'_, T>),
) -> BTreeSet<usize> {
    let begun = Instant::now();
    let (mut waiting, mut ready) = ((0..count).collect::<BTreeSet<usize>>(), Vec::new());
    let (mut word, mut pause) = (begun + PATIENCE, PATIENCE);
    let mut answers = std::pin::pin!(answers);
    loop {
        tokio::select! {
            answer = answers.next() => {
                let Some((at, answer)) = answer else { break };
                waiting.remove(&at);
                ready.push((at, answer));
                if begun.elapsed() >= PATIENCE {
                    tell(Told::Answers(std::mem::take(&mut ready)));
                }
            }
            () = sleep_until(word) => {
                if !ready.is_empty() {
                    tell(Told::Answers(std::mem::take(&mut ready)));
                }
                tell(Told::Waiting(&waiting, begun.elapsed()));
                pause = REMINDER.min(pause * 2);
                word += pause;
            }
            Some(()) = interrupts.recv() => break,
        }
    }
    if !ready.is_empty() {
        tell(Told::Answers(ready));
    }
    waiting
}

/// What is shown of the answers, and what they come to.
struct Shown<'a> {
    args: &'a ExecArgs,
    output: &'a Output,
    hosts: &'a [String],
    /// For the one document of all nodes.
    all: Vec<(usize, ExecResult)>,
    failed: bool,
    unreachable: bool,
    went_wrong: bool,
    /// Nothing more can be shown.
    broken: Option<CommandError>,
}

type Answer = Result<OpOutcome, (bool, String)>;

impl Shown<'_> {
    fn host(&self, at: usize) -> String {
        self.hosts.get(at).cloned().unwrap_or_default()
    }

    fn tell(&mut self, told: Told<'_, Answer>) {
        match told {
            Told::Answers(answers) => {
                let results = answers.into_iter().map(|(at, answer)| (at, self.result(at, answer)));
                let results = results.collect();
                self.show(results);
            }
            Told::Waiting(waiting, since) => {
                let names: Vec<&str> =
                    waiting.iter().filter_map(|at| self.hosts.get(*at)).map(String::as_str).collect();
                self.output.status(&format!(
                    "waiting for {} for {} s; Ctrl-C ends it and says who did not answer",
                    fold_names(&names),
                    since.as_secs()
                ));
            }
        }
    }

    fn result(&mut self, at: usize, answer: Answer) -> ExecResult {
        let host = self.host(at);
        let result = match answer {
            Ok(outcome) => {
                let text = |name: &str| {
                    outcome.data.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
                };
                let rc = outcome.data.get("rc").and_then(Value::as_i64).and_then(|rc| i32::try_from(rc).ok());
                let error = match &outcome.status {
                    OpStatus::Failed { kind, message } if rc.is_none() || *kind != FailureKind::Exit => {
                        Some(message.clone())
                    }
                    _ => None,
                };
                self.failed |= matches!(outcome.status, OpStatus::Failed { .. });
                ExecResult { host, rc, stdout: text("stdout"), stderr: text("stderr"), error }
            }
            Err((_, why)) => {
                self.unreachable = true;
                ExecResult { host, rc: None, stdout: String::new(), stderr: String::new(), error: Some(why) }
            }
        };
        self.went_wrong |= result.rc != Some(0);
        result
    }

    /// Shows results in inventory order; the one document of JSON is shown at the end.
    fn show(&mut self, mut results: Vec<(usize, ExecResult)>) {
        results.sort_by_key(|(at, _)| *at);
        let format = self.args.format.unwrap_or_default();
        let written = match format {
            Format::Json => {
                self.all.extend(results);
                return;
            }
            Format::Human | Format::Ansible if self.args.one_line => {
                Ok(results.iter().map(|(_, result)| display::exec_line(result, &self.output.style)).collect())
            }
            Format::Human | Format::Ansible => {
                let results: Vec<ExecResult> = results.into_iter().map(|(_, result)| result).collect();
                Ok(display::exec_grouped(&results, &self.output.style))
            }
            Format::Jsonl => results
                .iter()
                .map(|(_, result)| gpufleet::visible::json_line(&document(result)))
                .collect::<Result<String, _>>()
                .map_err(CommandError::internal),
        };
        let done = written.and_then(|text| self.output.data(&text));
        self.broken = self.broken.take().or_else(|| done.err());
    }

    /// Says who did not answer before somebody interrupted.
    fn silent(&mut self, waiting: &BTreeSet<usize>, since: Duration) {
        let why = format!(
            "did not answer within {} s, when it was interrupted: whether the command goes on there is not known",
            since.as_secs()
        );
        let silent = |at: &usize| {
            let (stdout, stderr) = (String::new(), String::new());
            (*at, ExecResult { host: self.host(*at), rc: None, stdout, stderr, error: Some(why.clone()) })
        };
        let results = waiting.iter().map(silent).collect();
        self.show(results);
    }
}

fn document(result: &ExecResult) -> Value {
    json!({"host": result.host, "rc": result.rc, "stdout": result.stdout, "stderr": result.stderr, "error": result.error})
}

/// Runs a program on all selected nodes at once. 130 where somebody interrupted before all had answered.
pub(super) fn on_all(
    run: Program,
    target: &Target<'_>,
    args: &ExecArgs,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    let timeout = args.connection.task_timeout.unwrap_or(COMMAND_S);
    let become_user = args.escalation.become_user.as_ref().filter(|_| args.escalation.r#become);
    let run_as = &become_user.filter(|user| *user != "root").cloned();
    let Reach { fleet, hosts, .. } = reach(target, environment, output)?;
    let mut shown = Shown {
        args,
        output,
        hosts: &hosts,
        all: Vec::new(),
        failed: false,
        unreachable: false,
        went_wrong: false,
        broken: None,
    };
    let waiting = engine::block_on(async {
        let begun = Instant::now();
        let (fleet, run) = (&fleet, &run);
        let answers = stream::iter(hosts.iter().enumerate())
            .map(|(at, host)| async move {
                let link = fleet.connect(host, target.purpose).await;
                let open = link.as_ref().ok().map(std::sync::Arc::clone);
                let op = NodeOp::Exec(Exec { run: run.clone(), ..Exec::default() });
                let answer = call(link, OpRequest { run_as: run_as.clone(), ..request(op, timeout) }).await;
                if let Some(link) = open {
                    link.close().await;
                }
                (at, answer)
            })
            .buffer_unordered(target.connection.forks());
        let (pressed, mut interrupts) = mpsc::channel(1);
        let heard = tokio::spawn(engine::signals(pressed));
        let waiting = gather(answers, hosts.len(), &mut interrupts, |told| shown.tell(told)).await;
        heard.abort();
        if !waiting.is_empty() {
            shown.silent(&waiting, begun.elapsed());
        }
        waiting
    })?;
    if !args.shell
        && let Some(word) = for_a_shell(&args.argv, shown.went_wrong)
    {
        output.status(&format!(
            "help: `{word}` means something to a shell only, and went to the program as it is; `-s` gives the words to one"
        ));
    }
    if let Some(error) = shown.broken {
        return Err(error);
    }
    if args.format == Some(Format::Json) {
        shown.all.sort_by_key(|(at, _)| *at);
        let all: Vec<Value> = shown.all.iter().map(|(_, result)| document(result)).collect();
        output.data(&gpufleet::visible::json_document(&all).map_err(CommandError::internal)?)?;
    }
    Ok(match waiting.is_empty() {
        true => exit_code(shown.failed, shown.unreachable),
        false => INTERRUPTED,
    })
}

/// A word of a program's line that only a shell would understand: a pipe, a redirection, a variable. Where all went well,
/// only one that hardly any program takes.
fn for_a_shell(words: &[String], went_wrong: bool) -> Option<&str> {
    const NEVER_MEANT: [&str; 6] = ["|", "||", "&&", ">", ">>", "2>&1"];
    // `find -exec` ends with a semicolon.
    const SELDOM_MEANT: [&str; 3] = [";", "<", "&"];
    let variable = |word: &str| {
        let name = word.strip_prefix('$').unwrap_or_default();
        name.starts_with(['{', '(']) || name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    };
    let line = words.len() == 1;
    words.iter().map(String::as_str).find(|word| {
        NEVER_MEANT.contains(word)
            || variable(word)
            || went_wrong
                && (SELDOM_MEANT.contains(word)
                    || line && (word.contains(char::is_whitespace) || word.contains(['|', ';', '>', '<'])))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell_are_known() {
        let asked = |line: &[&str], went_wrong| {
            let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
            for_a_shell(&words, went_wrong).map(str::to_owned)
        };
        let found = |line: &[&str]| asked(line, true);
        assert_eq!(asked(&["echo", "hi", "|", "wc", "-l"], false).as_deref(), Some("|"));
        assert_eq!(asked(&["echo", "$HOME"], false).as_deref(), Some("$HOME"));
        assert_eq!(asked(&["find", "/tmp", "-exec", "ls", "{}", ";"], false), None);
        assert_eq!(asked(&["awk", "$1 > 2 { print }"], false), None);
        assert_eq!(asked(&["ps aux"], false), None);
        assert_eq!(found(&["nvidia-smi", "|", "wc"]).as_deref(), Some("|"));
        assert_eq!(found(&["ps aux | wc -l"]).as_deref(), Some("ps aux | wc -l"));
        assert_eq!(found(&["echo", "$(hostname)"]).as_deref(), Some("$(hostname)"));
        assert_eq!(found(&["grep", "a|b", "/etc/motd"]), None);
        assert_eq!(found(&["uptime"]), None);
    }

    /// Answers after so many seconds, by place.
    fn after(seconds: &[u64]) -> impl Stream<Item = (usize, u64)> {
        stream::iter(seconds.iter().copied().enumerate())
            .map(|(at, seconds)| async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                (at, seconds)
            })
            .buffer_unordered(8)
    }

    fn gathered(seconds: &[u64], pressed_after: Option<u64>) -> (Vec<String>, Vec<usize>) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (press, mut interrupts) = mpsc::channel(1);
            let held = press.clone();
            if let Some(seconds) = pressed_after {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    press.send(()).await.unwrap();
                });
            }
            let (begun, mut told) = (Instant::now(), Vec::new());
            let waiting = gather(after(seconds), seconds.len(), &mut interrupts, |word| {
                let at = begun.elapsed().as_secs();
                told.push(match word {
                    Told::Answers(answers) => {
                        let places: Vec<usize> = answers.iter().map(|(place, _)| *place).collect();
                        format!("{at} s: {places:?}")
                    }
                    Told::Waiting(waiting, since) => {
                        format!("{at} s: waits for {waiting:?} since {} s", since.as_secs())
                    }
                });
            })
            .await;
            drop(held);
            (told, waiting.into_iter().collect())
        })
    }

    #[test]
    fn answers_are_shown_as_they_come_and_who_hangs_is_named() {
        let (told, waiting) = gathered(&[1, 40, 2, 7], None);
        assert_eq!(
            told,
            [
                "5 s: [0, 2]",
                "5 s: waits for {1, 3} since 5 s",
                "7 s: [3]",
                "15 s: waits for {1} since 15 s",
                "35 s: waits for {1} since 35 s",
                "40 s: [1]"
            ]
        );
        assert!(waiting.is_empty(), "{waiting:?}");
        assert_eq!(gathered(&[1, 2, 1], None), (vec!["2 s: [0, 2, 1]".to_owned()], vec![]));
    }

    #[test]
    fn an_interrupt_loses_no_answer_and_says_who_gave_none() {
        let (told, waiting) = gathered(&[1, 1800, 2], Some(3));
        assert_eq!((told, waiting), (vec!["3 s: [0, 2]".to_owned()], vec![1]));
        let (told, waiting) = gathered(&[1, 1800], Some(6));
        assert_eq!(told, ["5 s: [0]", "5 s: waits for {1} since 5 s"]);
        assert_eq!(waiting, [1]);
    }
}
