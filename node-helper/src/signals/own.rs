//! What checks of the user's own read: a file, or the output of a command.
//!
//! Invariants: root follows no link that another user can change; the size of each reading and the time of each command
//! are bounded; a command that fails gives nothing that could be judged.

use std::{io::Read as _, sync::mpsc, time::Duration};

use gpufleet_protocol::{
    signal::{Readings, Signal},
    tasks::{Form, OwnReading},
};

use super::{Found, Reader, answer, is_missing};
use crate::{
    os::{tree, users::Identity},
    process::{Exit, Run},
};

/// Largest reading, in bytes.
const MOST_BYTES: usize = 4096;

/// What checks of the user's own read, and who reads it: the user of the task, or the helper itself.
#[derive(Default)]
pub struct Own<'a> {
    pub asked: &'a [OwnReading],
    pub user: Option<&'a Identity>,
}

/// Takes readings, one after the other.
pub fn read(reader: &Reader<'_>, own: &Own<'_>) -> Readings {
    let mut readings = Readings::new();
    let user = own.user;
    for own in own.asked {
        let limit = Duration::from_secs(own.timeout_s.min(OwnReading::MOST_S).into());
        let found = match &own.file {
            Some(path) => file(reader, path, user, limit),
            None => {
                let (found, exit_code) = command(reader, own, user, limit);
                readings.insert(OwnReading::exit_code(&own.id), exit_code);
                found
            }
        };
        let signal = match found {
            Ok(Some(text)) => value(&text, own.form),
            Ok(None) => Signal::Absent,
            Err(why) => Signal::Unknown(why),
        };
        readings.insert(own.id.clone(), signal);
    }
    readings
}

/// Reads a file in a thread that may be left behind: nothing interrupts a question to a server that is gone.
fn file(reader: &Reader<'_>, path: &str, user: Option<&Identity>, limit: Duration) -> Found<Vec<u8>> {
    let place = reader.roots.path(path);
    let read = move || -> Found<Vec<u8>> {
        let opened = match tree::open(&place) {
            Ok(file) => file,
            Err(error) if is_missing(&error.source) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut bytes = Vec::new();
        let most = MOST_BYTES as u64 + 1;
        opened.take(most).read_to_end(&mut bytes).map_err(|error| format!("{}: {error}", place.display()))?;
        Ok(Some(bytes))
    };
    let user = user.cloned();
    let read = move || match &user {
        Some(user) => user.with_rights(read).map_err(|error| error.to_string())?,
        None => read(),
    };
    let (sender, receiver) = mpsc::channel();
    let ask = move || {
        // Nobody may wait for it any more.
        let _ = sender.send(read());
    };
    let thread = std::thread::Builder::new().name("own file".to_owned());
    thread.spawn(ask).map_err(|error| format!("no thread could be started: {error}"))?;
    answer(&receiver, &reader.deadline.within(limit))
        .unwrap_or_else(|| Err(format!("{path}: it does not answer")))
}

/// Returns what a command prints, and how it ended.
fn command(
    reader: &Reader<'_>,
    own: &OwnReading,
    user: Option<&Identity>,
    limit: Duration,
) -> (Found<Vec<u8>>, Signal) {
    let failed = |why: String| (Err(why.clone()), Signal::Unknown(why));
    let Some((program, arguments)) = own.command.split_first() else {
        return failed("no command is given".to_owned());
    };
    let run = Run::new(program).args(arguments).user(user.cloned()).limit(MOST_BYTES + 1);
    let done = match run.finish(&reader.deadline.within(limit)) {
        Ok(done) => done,
        Err(error) => return failed(error.to_string()),
    };
    match done.exit {
        Exit::Code(0) => (Ok(Some(done.output.stdout.bytes)), 0.into()),
        Exit::Code(code) => (Err(done.complaint(program)), code.into()),
        Exit::Signal(_) => failed(done.complaint(program)),
    }
}

fn value(bytes: &[u8], form: Form) -> Signal {
    if bytes.len() > MOST_BYTES {
        return Signal::Unknown(format!("it has more than {} KiB", MOST_BYTES / 1024));
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Signal::Unknown("it is no text in UTF-8".to_owned());
    };
    let text = text.trim();
    if text.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t')) {
        return Signal::Unknown("it has control characters".to_owned());
    }
    match form {
        Form::Text => text.into(),
        Form::Number => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => number.into(),
            _ => Signal::Unknown("it is no number".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{deadline::Deadline, tasks::testing::Bench};

    fn of_command(command: &[&str]) -> OwnReading {
        let command = command.iter().map(ToString::to_string).collect();
        OwnReading { id: "a.b".to_owned(), command, timeout_s: 1, ..OwnReading::default() }
    }

    fn of_file(path: &str, form: Form) -> OwnReading {
        let file = Some(path.to_owned());
        OwnReading { id: "a.b".to_owned(), file, form, timeout_s: 1, ..OwnReading::default() }
    }

    fn taken(bench: &Bench, asked: &OwnReading) -> (Signal, Option<Signal>) {
        let deadline = Deadline::after(Duration::from_secs(20));
        let reader = Reader { roots: &bench.roots, deadline: &deadline };
        let mut readings = read(&reader, &Own { asked: std::slice::from_ref(asked), user: None });
        let value = readings.remove("a.b").unwrap();
        (value, readings.remove("a.b.exit_code"))
    }

    fn why(signal: &Signal) -> &str {
        match signal {
            Signal::Unknown(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_is_read_as_text_or_as_a_number() {
        let bench = Bench::new();
        bench.write("proc/sys/vm/swappiness", "10\n");
        bench.write("etc/role", "training \n");
        let read = |path, form| taken(&bench, &of_file(path, form)).0;
        assert_eq!(read("/proc/sys/vm/swappiness", Form::Number), Signal::from(10.0));
        assert_eq!(read("/proc/sys/vm/swappiness", Form::Text), Signal::from("10"));
        assert_eq!(read("/etc/role", Form::Text), Signal::from("training"));
        assert_eq!(why(&read("/etc/role", Form::Number)), "it is no number");
        assert_eq!(read("/etc/none", Form::Text), Signal::Absent);
    }

    #[test]
    fn what_is_no_small_text_is_unknown() {
        let bench = Bench::new();
        bench.write("large", &"x".repeat(MOST_BYTES + 1));
        std::fs::write(bench.path("binary"), [0xff, 0xfe]).unwrap();
        assert!(Command::new("mkfifo").arg(bench.path("pipe")).status().unwrap().success());
        let read = |path| taken(&bench, &of_file(path, Form::Text)).0;
        assert_eq!(why(&read("/large")), "it has more than 4 KiB");
        assert_eq!(why(&read("/binary")), "it is no text in UTF-8");
        assert!(why(&read("/pipe")).contains("no regular file"));
        let endless = of_command(&["yes"]);
        assert!(why(&taken(&bench, &endless).0).contains("its time was up"));
    }

    #[test]
    fn a_command_gives_what_it_prints_and_how_it_ended() {
        let bench = Bench::new();
        let of_shell = |script| taken(&bench, &of_command(&["sh", "-c", script]));
        assert_eq!(of_shell("echo ' Optimal '"), (Signal::from("Optimal"), Some(Signal::from(0))));
        let (value, code) = of_shell("echo Degraded; echo 'no such array' >&2; exit 3");
        assert_eq!(why(&value), "sh: exit status 3: no such array");
        assert_eq!(code, Some(Signal::from(3)));
        for script in ["kill -9 $$", "sleep 30"] {
            let (value, code) = of_shell(script);
            assert_eq!(why(&value), why(&code.unwrap()), "{script}");
        }
        let (value, code) = taken(&bench, &of_command(&["/no/such/program"]));
        assert!(why(&value).contains("/no/such/program"));
        assert!(matches!(code, Some(Signal::Unknown(_))));
    }

    #[test]
    fn words_are_no_shell() {
        let bench = Bench::new();
        let (value, _) = taken(&bench, &of_command(&["printf", "%s", "$(id); `id`"]));
        assert_eq!(value, Signal::from("$(id); `id`"));
    }
}
