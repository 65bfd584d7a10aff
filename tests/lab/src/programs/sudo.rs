//! `sudo`, for hosts that have none: the account `ops` needs no password, `admin` has the password `lab`.
//!
//! Inside a node the file is setuid root; outside, it is in a directory that only root can enter.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::node::first::PATH;
use crate::out;

const PASSWORD: &str = "lab";

#[derive(Default)]
struct Request {
    stdin: bool,
    never_ask: bool,
    prompt: Option<String>,
    user: Option<String>,
    assignments: Vec<(String, String)>,
    command: Vec<String>,
    validate: bool,
    forget: bool,
}

fn parse(arguments: &[String]) -> Result<Request, String> {
    let mut request = Request::default();
    let mut items = arguments.iter();
    while let Some(item) = items.next() {
        match item.as_str() {
            "--" => {
                request.command.extend(items.by_ref().cloned());
            }
            "-p" | "--prompt" => request.prompt = items.next().cloned(),
            "-u" | "--user" => request.user = items.next().cloned(),
            "-g" | "-C" | "-h" | "-r" | "-t" | "-T" | "-U" => {
                items.next();
            }
            "--stdin" => request.stdin = true,
            "--non-interactive" => request.never_ask = true,
            "--validate" => request.validate = true,
            "--reset-timestamp" => request.forget = true,
            option if option.starts_with("--") => {}
            flags if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        'S' => request.stdin = true,
                        'n' => request.never_ask = true,
                        'v' => request.validate = true,
                        'k' | 'K' => request.forget = true,
                        'H' | 'E' | 'b' | 'i' | 's' | 'A' | 'B' | 'P' => {}
                        'p' => request.prompt = items.next().cloned(),
                        'u' => request.user = items.next().cloned(),
                        other => return Err(format!("sudo: invalid option -- '{other}'")),
                    }
                }
            }
            word => match word.split_once('=') {
                Some((key, value)) if !key.contains('/') => {
                    request.assignments.push((key.to_owned(), value.to_owned()));
                }
                _ => {
                    request.command.push(word.to_owned());
                    request.command.extend(items.by_ref().cloned());
                }
            },
        }
    }
    Ok(request)
}

/// Returns name and uid of the user in the /etc/passwd line that `wanted` picks.
fn account(wanted: impl Fn(&[&str]) -> bool) -> Option<(String, u32, u32, String)> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| wanted(fields)).and_then(
        |fields| match fields.as_slice() {
            [name, _, uid, gid, _, home, ..] => {
                Some(((*name).to_owned(), uid.parse().ok()?, gid.parse().ok()?, (*home).to_owned()))
            }
            _ => None,
        },
    )
}

pub fn run(arguments: &[String]) -> u8 {
    let request = match parse(arguments) {
        Ok(request) => request,
        Err(text) => {
            out::error(text);
            return 1;
        }
    };
    if !rustix::process::geteuid().is_root() {
        out::error("sudo: /usr/bin/sudo must be owned by uid 0 and have the setuid bit set");
        return 1;
    }
    let uid = rustix::process::getuid().as_raw().to_string();
    let caller = account(|fields| fields.get(2) == Some(&uid.as_str())).map_or(uid, |(name, ..)| name);
    if request.command.is_empty() && request.forget && !request.validate {
        return 0;
    }
    if !allowed(&caller, &request) {
        return 1;
    }
    let Some((program, rest)) = request.command.split_first() else {
        if request.validate {
            return 0;
        }
        out::error("usage: sudo -h | -K | -k | -V");
        return 1;
    };
    let wanted = request.user.clone().unwrap_or_else(|| "root".to_owned());
    let Some((name, uid, gid, home)) = account(|fields| fields.first() == Some(&wanted.as_str())) else {
        out::error(format!(
            "sudo: unknown user {wanted}\nsudo: error initializing audit plugin sudoers_audit"
        ));
        return 1;
    };
    let error = Command::new(program)
        .args(rest)
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", home)
        .env("USER", &name)
        .env("LOGNAME", &name)
        .env("SUDO_USER", &caller)
        .envs(
            std::env::vars()
                .filter(|(key, _)| matches!(key.as_str(), "LANG" | "TERM") || key.starts_with("LC_")),
        )
        .envs(request.assignments)
        .gid(gid)
        .uid(uid)
        .exec();
    match error.kind() {
        std::io::ErrorKind::NotFound => out::error(format!("sudo: {program}: command not found")),
        _ => out::error(format!("sudo: unable to execute {program}: {error}")),
    }
    1
}

fn allowed(caller: &str, request: &Request) -> bool {
    match caller {
        "root" | "ops" => return true,
        "admin" => {}
        _ => {
            out::error(format!("{caller} is not in the sudoers file."));
            return false;
        }
    }
    if request.never_ask {
        out::error("sudo: a password is required");
        return false;
    }
    if !request.stdin {
        out::error(
            "sudo: a terminal is required to read the password; either use the -S option to read from standard input or configure an askpass helper\n\
             sudo: a password is required",
        );
        return false;
    }
    for attempt in 1..=3 {
        let prompt = request.prompt.clone().unwrap_or_else(|| format!("[sudo] password for {caller}: "));
        use std::io::Write as _;
        let _ = std::io::stderr().write_all(prompt.as_bytes());
        let Some(line) = read_line() else {
            out::error(if attempt == 1 {
                "\nsudo: no password was provided\nsudo: a password is required".to_owned()
            } else {
                format!(
                    "\nsudo: {} incorrect password attempt{}",
                    attempt - 1,
                    if attempt > 2 { "s" } else { "" }
                )
            });
            return false;
        };
        if line == PASSWORD {
            return true;
        }
        if attempt < 3 {
            out::error("Sorry, try again.");
        }
    }
    out::error("sudo: 3 incorrect password attempts");
    false
}

/// Reads one line of standard input and not a byte more: the rest belongs to the command.
fn read_line() -> Option<String> {
    let stdin = std::io::stdin();
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match rustix::io::read(&stdin, &mut byte) {
            Ok(1) if byte == *b"\n" => return String::from_utf8(line).ok(),
            Ok(1) => line.extend(byte),
            _ if line.is_empty() => return None,
            _ => return String::from_utf8(line).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_where_the_command_begins() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let request = parse(&words("-k -S -p NONCE -- sh -c x")).unwrap();
        assert!(request.stdin && request.forget && !request.never_ask);
        assert_eq!(request.prompt.as_deref(), Some("NONCE"));
        assert_eq!(request.command, ["sh", "-c", "x"]);
        let request = parse(&words("-nu ops LANG=C true -n")).unwrap();
        assert!(request.never_ask);
        assert_eq!((request.user.as_deref(), request.command.len()), (Some("ops"), 2));
        assert_eq!(request.assignments, [("LANG".to_owned(), "C".to_owned())]);
        assert!(parse(&words("-? true")).is_err());
    }
}
