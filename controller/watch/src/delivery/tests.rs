use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::{
    changes,
    config::{Filter, Location, Webhook},
};

/// A request as a server saw it.
struct Request {
    line: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let begin = format!("{name}: ");
        self.headers.iter().find_map(|line| line.strip_prefix(&begin))
    }
}

/// A server on loopback that answers each connection with the next of these texts; with none left it accepts and says
/// nothing.
fn server(answers: Vec<String>) -> (String, mpsc::Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answers = answers.into_iter();
        let mut silent: Vec<TcpStream> = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                match line.trim_end() {
                    "" => break,
                    line => lines.push(line.to_owned()),
                }
            }
            let mut request = Request { line: lines.remove(0), headers: lines, body: Vec::new() };
            let length = request.header("content-length").unwrap().parse().unwrap();
            request.body = vec![0; length];
            reader.read_exact(&mut request.body).unwrap();
            if sender.send(request).is_err() {
                return;
            }
            match answers.next() {
                Some(answer) => reader.get_mut().write_all(answer.as_bytes()).unwrap(),
                None => silent.push(reader.into_inner()),
            }
        }
    });
    (address, requests)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn channel(means: Means, timeout: Duration) -> Channel {
    Channel { name: "oncall".into(), means, timeout, filter: Filter::default() }
}

fn webhook(url: String) -> Webhook {
    Webhook { url: Location::Url(url), secret_file: None, token_file: None, ca_file: None, proxy: None }
}

fn deliver(channel: &Channel, folder: &Path) -> Delivery {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let courier = Arc::new(Courier::prepare(channel, folder).unwrap());
    let note = changes::test("head", "oncall", Timestamp::UNIX_EPOCH);
    let (_sender, stop) = tokio::sync::watch::channel(false);
    runtime.block_on(courier.deliver(note, folder.to_owned(), stop))
}

fn post(url: String, timeout: Duration) -> Delivery {
    deliver(&channel(Means::Webhook(webhook(url)), timeout), Path::new("/"))
}

const LONG: Duration = Duration::from_secs(20);

fn private(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).unwrap();
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_notification_is_posted_once_with_its_id_and_its_signature() {
    let folder = tempfile::tempdir().unwrap();
    private(folder.path(), "secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
    private(folder.path(), "token", "t0ken\n");
    let (address, requests) = server(vec![answer("204 No Content", "", "")]);
    let webhook = Webhook {
        secret_file: Some("secret".into()),
        token_file: Some("token".into()),
        ..webhook(format!("{address}/hook?key=1"))
    };
    assert_eq!(deliver(&channel(Means::Webhook(webhook), LONG), folder.path()), Delivery::Done);
    let request = requests.recv_timeout(LONG).unwrap();
    assert_eq!(request.line, "POST /hook?key=1 HTTP/1.1");
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("authorization"), Some("Bearer t0ken"));
    let document: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    let id = document["id"].as_str().unwrap();
    assert_eq!((request.header("webhook-id"), request.header("idempotency-key")), (Some(id), Some(id)));
    let seconds = request.header("webhook-timestamp").unwrap().parse().unwrap();
    let key = signature::Key::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    assert_eq!(request.header("webhook-signature"), Some(key.sign(id, seconds, &request.body).as_str()));
    assert!(requests.try_recv().is_err(), "once");
    let schema = jsonschema::validator_for(&crate::notification::schema()).unwrap();
    assert!(schema.is_valid(&document), "{document}");
}

#[test]
fn a_redirect_is_not_followed() {
    let (target, seen) = server(vec![answer("200 OK", "", "")]);
    for status in ["301 Moved Permanently", "307 Temporary Redirect"] {
        let (address, requests) = server(vec![answer(status, &format!("location: {target}/\r\n"), "")]);
        let delivery = post(format!("{address}/T0/secret"), LONG);
        let Delivery::Failed { why, .. } = delivery else { panic!("{delivery:?}") };
        assert!(why.contains("redirect") && !why.contains("secret") && !why.contains(&target), "{why}");
        requests.recv_timeout(LONG).unwrap();
    }
    assert!(seen.try_recv().is_err());
}

#[test]
fn failures_are_told_apart_and_tell_no_secret() {
    let asked = "retry-after: 120\r\n";
    let cases = [
        (answer("503 Service Unavailable", asked, "busy"), Some(120)),
        (answer("429 Too Many Requests", asked, ""), Some(120)),
        (answer("404 Not Found", "", "no /T0/secret here\u{1b}[2J"), None),
        (answer("500 Oops", "retry-after: soon\r\n", ""), None),
    ];
    for (text, wait) in cases {
        let (address, _requests) = server(vec![text]);
        let delivery = post(format!("{address}/T0/secret"), LONG);
        let Delivery::Failed { why, after } = delivery else { panic!("{delivery:?}") };
        assert_eq!(after, wait.map(SignedDuration::from_secs), "{why}");
        assert!(!why.contains("T0") && !why.contains('\u{1b}') && why.contains(&address), "{why}");
    }
    for status in ["400 Bad Request", "413 Too Large", "422 Unprocessable"] {
        let (address, _requests) = server(vec![answer(status, "", "wrong key `kind`")]);
        let delivery = post(address, LONG);
        assert!(matches!(&delivery, Delivery::Refused { why } if why.contains("wrong key")), "{delivery:?}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let delivery = post(format!("http://{address}/T0/secret"), LONG);
    assert!(matches!(&delivery, Delivery::Failed { why, .. } if !why.contains("T0")), "{delivery:?}");
}

#[test]
fn a_silent_server_costs_the_time_limit_and_no_more() {
    let (address, requests) = server(Vec::new());
    let begin = Instant::now();
    // Long enough for a busy machine to ask.
    let delivery = post(format!("{address}/T0"), Duration::from_secs(6));
    assert!(matches!(&delivery, Delivery::Failed { why, .. } if why.contains("timeout")), "{delivery:?}");
    assert!(begin.elapsed() < LONG * 2);
    requests.recv_timeout(LONG).unwrap();
}

#[test]
fn an_endless_answer_is_not_read_to_its_end() {
    let (address, _requests) = server(vec![answer("500 Oops", "", &"x".repeat(10 << 20))]);
    let Delivery::Failed { why, .. } = post(address, LONG) else { panic!("it failed") };
    assert!(why.len() < 300, "{}", why.len());
}

#[test]
fn a_secret_in_an_answer_is_masked_before_the_answer_is_cut() {
    let path = format!("/T0{}", "s".repeat(226));
    for (said, shown) in [(format!("{}{path}", "-".repeat(150)), "---…"), (path.repeat(40), "answers 500")]
    {
        let (address, _requests) = server(vec![answer("500 Oops", "", &said)]);
        let Delivery::Failed { why, .. } = post(format!("{address}{path}"), LONG) else {
            panic!("it failed")
        };
        assert!(!why.contains("ss") && why.contains(shown), "{why}");
    }
}

#[test]
fn secrets_are_not_sent_in_clear_text_beyond_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    private(folder.path(), "token", "a-token-of-enough-bytes");
    private(folder.path(), "url", "http://hooks.example.com/T0");
    let prepare = |webhook| {
        Courier::prepare(&channel(Means::Webhook(webhook), LONG), folder.path()).map(|it| it.destination())
    };
    let with_token = |url: &str| Webhook { token_file: Some("token".into()), ..webhook(url.into()) };
    for url in ["http://hooks.example.com/T0", "http://10.0.0.1:80", "http://127.0.0.1.example.com"] {
        let error = prepare(with_token(url)).unwrap_err();
        assert!(error.contains("its token in clear text") && !error.contains("T0"), "{error}");
        prepare(webhook(url.into())).unwrap();
    }
    for url in
        ["https://hooks.example.com/T0", "http://127.0.0.1:80/T0", "http://[::1]:80", "http://localhost"]
    {
        prepare(with_token(url)).unwrap();
    }
    let error = prepare(Webhook { url: Location::File("url".into()), ..webhook(String::new()) }).unwrap_err();
    assert!(error.contains("its secret URL in clear text") && !error.contains("T0"), "{error}");
}

#[test]
fn a_command_reads_the_notification_and_its_failure_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str], timeout| {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        deliver(&channel(Means::Command(words), timeout), folder.path())
    };
    assert_eq!(run(&["tee", "$HOME; false"], LONG), Delivery::Done, "no shell reads the words");
    let text = fs::read_to_string(folder.path().join("$HOME; false")).unwrap();
    assert!(text.contains("\"kind\":\"test\""), "{text}");
    assert_eq!(run(&["true"], LONG), Delivery::Done, "it need not read");
    let failed = run(&["sh", "-c", "echo no pager >&2; exit 3"], LONG);
    assert_eq!(failed, Delivery::Failed { why: "exit code 3: no pager".into(), after: None });
    assert!(
        matches!(run(&["/nonexistent/page"], LONG), Delivery::Failed { why, .. } if why.contains("/nonexistent/page"))
    );
}

#[test]
fn a_command_that_hangs_is_ended_with_what_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let script = "sleep 300 & echo $! > child; wait";
    let words = ["sh", "-c", script].map(str::to_owned).to_vec();
    let begin = Instant::now();
    let delivery = deliver(&channel(Means::Command(words), Duration::from_secs(5)), folder.path());
    assert!(
        matches!(&delivery, Delivery::Failed { why, .. } if why.contains("longer than 5 s")),
        "{delivery:?}"
    );
    assert!(begin.elapsed() < Duration::from_secs(30));
    let pid: i32 = fs::read_to_string(folder.path().join("child")).unwrap().trim().parse().unwrap();
    let gone = || {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    };
    let limit = Instant::now() + Duration::from_secs(10);
    while !gone() {
        assert!(Instant::now() < limit, "{pid} is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn secrets_that_every_user_can_read_or_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let prepare = || {
        let webhook =
            Webhook { secret_file: Some("secret".into()), ..webhook("https://example.com/T0".into()) };
        Courier::prepare(&channel(Means::Webhook(webhook), LONG), folder.path()).map(|it| it.destination())
    };
    assert!(prepare().unwrap_err().contains("cannot read the secret"));
    private(folder.path(), "secret", "c2hvcnQ=");
    let error = prepare().unwrap_err();
    assert!(error.contains("less than 16 bytes") && !error.contains("c2hvcnQ="), "{error}");
    private(folder.path(), "secret", "\n");
    assert!(prepare().unwrap_err().contains("is empty"));
    private(folder.path(), "secret", "YSBzZWNyZXQgb2YgZW5vdWdoIGJ5dGVz");
    assert_eq!(prepare(), Ok("https://example.com".to_owned()));
    fs::set_permissions(folder.path().join("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(prepare().unwrap_err().contains("chmod o="));
}
