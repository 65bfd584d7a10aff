//! `wait_for`: polls a port or a path until it has the declared state. Changes nothing.

use std::{
    fs,
    io::{ErrorKind, Read},
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs},
    path::Path,
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    FailureKind, OpOutcome, OpStatus,
    message::Mode,
    pattern::{LineBreaks, Pattern},
    tasks::{WaitFor, WaitState},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, Trouble},
    os::{attributes, files},
};

/// Largest file that is searched for text, in bytes.
const SEARCH_LIMIT: u64 = 64 * 1024 * 1024;
/// Largest amount of data from a port before it is given up, in bytes.
const SAID_LIMIT: usize = 1024 * 1024;

/// The matched groups of an expression.
#[derive(Default)]
struct Found {
    groups: Vec<Value>,
    names: Map<String, Value>,
}

/// Waits; in a prediction, checks once.
///
/// # Errors
/// At the deadline, or if an expression is invalid.
pub fn run(task: &WaitFor, node: &Node<'_>, mode: Mode) -> Result<OpOutcome, Trouble> {
    let regexp = task
        .search_regex
        .as_deref()
        .map(|text| Pattern::new("search_regex", text, LineBreaks::Anchors).map_err(Trouble::invalid))
        .transpose()?;
    let begun = Instant::now();
    if mode == Mode::Predict {
        let idle = task.port.is_none() && task.path.is_none();
        return Ok(
            match idle
                .then(Found::default)
                .map_or_else(|| look(task, node, regexp.as_ref()), |f| Ok(Some(f)))?
            {
                Some(found) => done(task, node, found, begun),
                None => OpOutcome::new(OpStatus::Possible),
            },
        );
    }
    let timeout = Duration::from_secs(task.timeout);
    rest(node, Duration::from_secs(task.delay))?;
    if task.port.is_none() && task.path.is_none() {
        rest(node, timeout)?;
        return Ok(done(task, node, Found::default(), begun));
    }
    (node.progress)(format!("waiting for {}", subject(task)));
    loop {
        if let Some(found) = look(task, node, regexp.as_ref())? {
            return Ok(done(task, node, found, begun));
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let mut outcome = OpOutcome::failed(FailureKind::TimedOut, message(task));
            outcome.data.insert("elapsed".to_owned(), json!(begun.elapsed().as_secs()));
            return Ok(outcome);
        }
        rest(node, Duration::from_secs(task.sleep).min(left))?;
    }
}

fn rest(node: &Node<'_>, time: Duration) -> Result<(), Trouble> {
    let until = Instant::now() + time;
    loop {
        node.check_time()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

fn subject(task: &WaitFor) -> String {
    match (&task.path, task.port) {
        (Some(path), _) => format!("file {path}"),
        (None, Some(port)) => format!("{}:{port}", task.host),
        (None, None) => "the time".to_owned(),
    }
}

/// Returns the failure message, in Ansible's words.
fn message(task: &WaitFor) -> String {
    if let Some(message) = &task.msg {
        return message.clone();
    }
    let subject = subject(task);
    match (task.state, &task.search_regex, &task.path) {
        (WaitState::Started | WaitState::Present, Some(regexp), Some(path)) => {
            format!("Timeout when waiting for search string {regexp} in {path}")
        }
        (WaitState::Started | WaitState::Present, Some(regexp), None) => {
            format!("Timeout when waiting for search string {regexp} in {subject}")
        }
        (WaitState::Started | WaitState::Present, ..) => format!("Timeout when waiting for {subject}"),
        (WaitState::Drained, ..) => format!("Timeout when waiting for {subject} to drain"),
        (WaitState::Stopped | WaitState::Absent, _, Some(path)) => {
            format!("Timeout when waiting for {path} to be absent.")
        }
        (WaitState::Stopped | WaitState::Absent, ..) => {
            format!("Timeout when waiting for {subject} to stop.")
        }
    }
}

fn done(task: &WaitFor, node: &Node<'_>, found: Found, begun: Instant) -> OpOutcome {
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    outcome.data = match &task.path {
        Some(path) => attributes::of(&node.roots.path(path), &node.world, node.users),
        None => Map::new(),
    };
    let data = &mut outcome.data;
    data.entry("state").or_insert_with(|| json!(task.state));
    data.insert("elapsed".to_owned(), json!(begun.elapsed().as_secs()));
    data.insert("path".to_owned(), json!(task.path));
    data.insert("port".to_owned(), json!(task.port));
    data.insert("search_regex".to_owned(), json!(task.search_regex));
    data.insert("match_groups".to_owned(), Value::Array(found.groups));
    data.insert("match_groupdict".to_owned(), Value::Object(found.names));
    outcome
}

/// Checks once; `None` if the state is not reached.
fn look(task: &WaitFor, node: &Node<'_>, regexp: Option<&Pattern>) -> Result<Option<Found>, Trouble> {
    let gone = matches!(task.state, WaitState::Stopped | WaitState::Absent);
    let so = |yes: bool| yes.then(Found::default);
    if let Some(path) = &task.path {
        let path = node.roots.path(path);
        let there = node.world.any_match(&path);
        return match (gone, regexp) {
            (true, _) => Ok(so(!there)),
            (false, None) => Ok(so(there)),
            (false, Some(_)) if !there => Ok(None),
            (false, Some(regexp)) => in_file(&path, regexp),
        };
    }
    let Some(port) = task.port.and_then(|port| u16::try_from(port).ok()) else { return Ok(so(true)) };
    if task.state == WaitState::Drained {
        return Ok(so(!connected(task, node, port)?));
    }
    let stream = connect(&task.host, port, Duration::from_secs(task.connect_timeout.max(1)));
    Ok(match (gone, stream, regexp) {
        (true, stream, _) => so(stream.is_none()),
        (false, None, _) => None,
        (false, Some(_), None) => so(true),
        (false, Some(stream), Some(regexp)) => {
            in_stream(stream, regexp, Duration::from_secs(task.connect_timeout))?
        }
    })
}

fn matched(regexp: &Pattern, text: &[u8]) -> Result<Option<Found>, Trouble> {
    let Some(captures) = regexp.captures(text).map_err(Trouble::invalid)? else { return Ok(None) };
    let value = |group: Option<&[u8]>| match group {
        Some(group) => json!(String::from_utf8_lossy(group)),
        None => Value::Null,
    };
    Ok(Some(Found {
        groups: captures.groups().map(value).collect(),
        names: captures.names().map(|name| (name.to_owned(), value(captures.name(name)))).collect(),
    }))
}

fn in_file(path: &Path, regexp: &Pattern) -> Result<Option<Found>, Trouble> {
    match files::read_bounded(path, SEARCH_LIMIT) {
        Ok(Some(text)) => matched(regexp, &text),
        _ => Ok(None),
    }
}

fn connect(host: &str, port: u16, timeout: Duration) -> Option<TcpStream> {
    let addresses = (host, port).to_socket_addrs().ok()?;
    addresses.into_iter().find_map(|address| TcpStream::connect_timeout(&address, timeout).ok())
}

/// Reads from the port until the text matches, the port falls silent, or the connection ends.
fn in_stream(mut stream: TcpStream, regexp: &Pattern, timeout: Duration) -> Result<Option<Found>, Trouble> {
    let until = Instant::now() + timeout.max(Duration::from_secs(1));
    let (mut said, mut buffer) = (Vec::new(), [0u8; 4096]);
    while said.len() < SAID_LIMIT {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Ok(None);
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(count) => said.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return Ok(None),
        }
        if let Some(found) = matched(regexp, &said)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Whether the kernel's table lists an open connection to the port.
fn connected(task: &WaitFor, node: &Node<'_>, port: u16) -> Result<bool, Trouble> {
    let code = |name: &str| {
        let known = [
            ("ESTABLISHED", "01"),
            ("SYN_SENT", "02"),
            ("SYN_RECV", "03"),
            ("FIN_WAIT1", "04"),
            ("FIN_WAIT2", "05"),
            ("TIME_WAIT", "06"),
        ];
        known.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, code)| *code)
    };
    let states: Vec<&str> = task.active_connection_states.iter().filter_map(|name| code(name)).collect();
    let resolve = |host: &str| -> Vec<IpAddr> {
        (host, port).to_socket_addrs().map(|all| all.map(|one| one.ip()).collect()).unwrap_or_default()
    };
    let own = resolve(&task.host);
    let excluded: Vec<IpAddr> = task.exclude_hosts.iter().flat_map(|host| resolve(host)).collect();
    let mut read = false;
    for table in ["net/tcp", "net/tcp6"] {
        let Ok(text) = fs::read_to_string(node.roots.proc(table)) else { continue };
        read = true;
        for line in text.lines().skip(1) {
            let mut words = line.split_whitespace().skip(1);
            let (Some(local), Some(remote), Some(state)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let (Some(local), Some(remote)) = (address(local), address(remote)) else { continue };
            let here = own.contains(&local.ip()) || own.iter().any(IpAddr::is_unspecified);
            if local.port() == port && here && states.contains(&state) && !excluded.contains(&remote.ip()) {
                return Ok(true);
            }
        }
    }
    if read { Ok(false) } else { Err(Trouble::io("the node does not tell which connections are open")) }
}

/// Parses an address of the kernel's tables: hexadecimal words in host byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0u8; 16];
            for (at, chunk) in bytes.chunks_mut(4).enumerate() {
                chunk.copy_from_slice(&word(at)?);
            }
            IpAddr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::{io::Write, net::TcpListener};

    use super::*;
    use crate::tasks::testing::Bench;

    fn wait(bench: &Bench, mode: Mode, value: Value) -> OpOutcome {
        let task: WaitFor = serde_json::from_value(value).unwrap();
        bench.node(|node| run(&task, node, mode).unwrap_or_else(Trouble::outcome))
    }

    #[test]
    fn paths_are_waited_for() {
        let bench = Bench::new();
        bench.write("run/ready", "state=up 42\n");
        let done = wait(
            &bench,
            Mode::Apply,
            json!({"path": "/run/ready", "search_regex": "state=(?P<what>\\w+) (\\d+)"}),
        );
        assert_eq!(done.status, OpStatus::Ok);
        assert_eq!(done.data["match_groups"], json!(["up", "42"]));
        assert_eq!(done.data["match_groupdict"], json!({"what": "up"}));
        assert_eq!((&done.data["state"], &done.data["size"]), (&json!("file"), &json!(12)));
        let late = wait(&bench, Mode::Apply, json!({"path": "/run/none", "timeout": 0}));
        let OpStatus::Failed { message, .. } = late.status else { panic!("{late:?}") };
        assert_eq!(message, "Timeout when waiting for file /run/none");
        let told = wait(
            &bench,
            Mode::Apply,
            json!({"path": "/run/ready", "state": "absent", "timeout": 0, "msg": "still there"}),
        );
        assert!(matches!(told.status, OpStatus::Failed { message, .. } if message == "still there"));
        assert_eq!(
            wait(&bench, Mode::Apply, json!({"path": "/run/none", "state": "absent"})).status,
            OpStatus::Ok
        );
        assert_eq!(wait(&bench, Mode::Predict, json!({"path": "/run/none"})).status, OpStatus::Possible);
        assert_eq!(wait(&bench, Mode::Predict, json!({"path": "/run/ready"})).status, OpStatus::Ok);
    }

    #[test]
    fn ports_are_waited_for() {
        let bench = Bench::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let talker = std::thread::spawn(move || {
            for stream in listener.incoming().take(2).flatten() {
                let mut stream = stream;
                let _ = stream.write_all(b"SSH-2.0-test\r\n");
            }
        });
        let banner = wait(&bench, Mode::Apply, json!({"port": port, "search_regex": "SSH-(\\S+)"}));
        assert_eq!((&banner.status, &banner.data["match_groups"]), (&OpStatus::Ok, &json!(["2.0-test"])));
        assert_eq!(wait(&bench, Mode::Apply, json!({"port": port})).status, OpStatus::Ok);
        talker.join().unwrap();
        assert_eq!(
            wait(&bench, Mode::Apply, json!({"port": port, "state": "stopped", "timeout": 20})).status,
            OpStatus::Ok
        );
        let late = wait(&bench, Mode::Apply, json!({"port": port, "timeout": 0}));
        assert!(matches!(late.status, OpStatus::Failed { kind: FailureKind::TimedOut, .. }));
    }

    #[test]
    fn open_connections_are_read_from_the_kernel() {
        let bench = Bench::new();
        let row = |local: &str, remote: &str, state: &str| {
            bench.write(
                "proc/net/tcp",
                &format!("  sl  local_address rem_address   st\n   0: {local} {remote} {state} 0:0\n"),
            );
        };
        let drained = json!({"port": 8080, "state": "drained", "timeout": 0});
        row("0100007F:1F90", "0200007F:D431", "01");
        assert!(matches!(wait(&bench, Mode::Apply, drained.clone()).status, OpStatus::Failed { .. }));
        let excluded = json!({"port": 8080, "state": "drained", "timeout": 0, "exclude_hosts": "127.0.0.2"});
        assert_eq!(wait(&bench, Mode::Apply, excluded).status, OpStatus::Ok);
        row("0100007F:1F90", "00000000:0000", "0A");
        assert_eq!(wait(&bench, Mode::Apply, drained).status, OpStatus::Ok);
    }

    #[test]
    fn it_is_cancelled_at_its_deadline() {
        let bench = Bench::new();
        let deadline = crate::deadline::Deadline::after(Duration::from_millis(200));
        let task: WaitFor = serde_json::from_value(json!({"timeout": 60})).unwrap();
        let done = bench.node(|node| {
            let node = Node {
                deadline: &deadline,
                user: None,
                world: node.world.clone(),
                downloads: crate::tasks::download::Downloads::default(),
                ..*node
            };
            run(&task, &node, Mode::Apply).unwrap_or_else(Trouble::outcome)
        });
        assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::TimedOut, .. }));
    }
}
