//! A hostile node: what sshd runs there instead of the helper, with the helper's own digest.
//!
//! Its only argument is a folder, in which a file named after the port of the connection selects the behaviour. Root
//! on a node can install it, so it needs no cooperation of the controller.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
    process::ExitCode,
    thread::sleep,
    time::Duration,
};

use gpufleet_protocol::{
    Envelope, NodeOp, OpOutcome, OpRequest, OpStatus, PROTOCOL_VERSION, Reply, Request,
    facts::Facts,
    frame::{Decoder, Frame, MAX_FRAME, PREAMBLE},
    health::SystemState,
    message::{Hello, Opened, Spooled},
    op::{Blob, ReadPiece},
};
use serde_json::json;

/// Payload size that fills one frame, with room for what surrounds it.
const FULL: usize = MAX_FRAME - 4096;

fn main() -> ExitCode {
    let mode = mode().unwrap_or_default();
    match (Node { mode, out: io::stdout() }).serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn mode() -> Option<String> {
    let folder = std::env::args().nth(1)?;
    let connection = std::env::var("SSH_CONNECTION").ok()?;
    let port = connection.split(' ').nth(3)?.to_owned();
    let mode = std::fs::read_to_string(Path::new(&folder).join(port)).ok()?;
    Some(mode.trim().to_owned())
}

/// Returns the digest that the controller expects, from the command that it sends.
fn digest() -> String {
    let command = std::env::var("SSH_ORIGINAL_COMMAND").unwrap_or_default();
    let wanted = format!("{}=", std::env::consts::ARCH);
    let words = command.split([' ', '\'']);
    let found = words.filter_map(|word| word.strip_prefix(&wanted)).find_map(|rest| rest.split('=').next());
    found.unwrap_or_default().to_owned()
}

struct Node {
    mode: String,
    out: io::Stdout,
}

impl Node {
    fn serve(mut self) -> io::Result<()> {
        let is = |mode: &str| self.mode == mode;
        let endless = |out: &mut dyn io::Write| loop {
            out.write_all(&[b'x'; 4096])?;
        };
        if is("noise") {
            return endless(&mut self.out);
        }
        self.out.write_all(PREAMBLE)?;
        let text = |long: bool| if long { "x".repeat(FULL) } else { "boot".to_owned() };
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            digest: digest(),
            uid: 0,
            arch: std::env::consts::ARCH.to_owned(),
            pid: 1,
            boot_id: Some(text(self.mode == "hello")),
        };
        self.reply(0, Reply::Hello(hello))?;
        if self.mode == "stderr" {
            std::thread::spawn(move || endless(&mut io::stderr()));
        }
        if self.mode == "idle" {
            loop {
                self.reply(0, Reply::Progress { text: "still here".to_owned() })?;
            }
        }
        let mut decoder = Decoder::default();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = io::stdin().read(&mut buffer)?;
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
            decoder.feed(bytes);
            while let Some(frame) = decoder.next_frame().map_err(io::Error::other)? {
                if let Some(Envelope { id, body }) =
                    frame.decode::<Envelope<Request>>().map_err(io::Error::other)?
                    // No answer, or the play would be over before enough was received.
                    && self.mode != "stderr"
                {
                    self.answer(id, body)?;
                }
            }
        }
    }

    fn reply(&mut self, id: u64, body: Reply) -> io::Result<()> {
        let frame = Frame::message(&Envelope { id, body }).and_then(|frame| frame.encode());
        self.out.write_all(&frame.map_err(io::Error::other)?)?;
        self.out.flush()
    }

    /// Sends an outcome with `data` inserted unchanged.
    fn raw(&mut self, id: u64, data: &str) -> io::Result<()> {
        let text = format!(
            "{{\"id\":{id},\"body\":{{\"reply\":\"outcome\",\"with\":{{\"status\":{{\"status\":\"changed\"}},\"changes\":[],\"data\":{data}}}}}}}"
        );
        let frame = Frame::Json(text.into_bytes()).encode().map_err(io::Error::other)?;
        self.out.write_all(&frame)?;
        self.out.flush()
    }

    fn outcome(&mut self, id: u64, change: impl FnOnce(&mut OpOutcome)) -> io::Result<()> {
        let mut outcome = OpOutcome::new(OpStatus::Ok);
        change(&mut outcome);
        self.reply(id, Reply::Outcome(Box::new(outcome)))
    }

    fn answer(&mut self, id: u64, request: Request) -> io::Result<()> {
        match request {
            Request::Open(_) => {
                self.reply(id, Reply::Opened(Opened { state_dir: "/nowhere".to_owned(), kept: None }))
            }
            Request::Op(request) => self.operate(id, *request),
            Request::Spooled { .. } => self.reply(id, Reply::Spooled(Spooled::Nothing)),
            Request::Ping | Request::Cancel { .. } | Request::Blob { .. } | Request::NoBlob { .. } => Ok(()),
            Request::Close => {
                self.reply(id, Reply::Done)?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            _ => self.reply(id, Reply::Done),
        }
    }

    fn operate(&mut self, id: u64, request: OpRequest) -> io::Result<()> {
        let huge = |mode: &str, wanted: &str| {
            if mode == wanted { "x".repeat(FULL - 64 * 1024) } else { "n".to_owned() }
        };
        let mode = self.mode.clone();
        match request.op {
            NodeOp::Exec(_) => self.attack(id),
            NodeOp::ReadPiece(piece) => self.piece(id, &piece),
            NodeOp::Facts(_) => self.outcome(id, |outcome| {
                let facts = Facts {
                    hostname: huge(&mode, "facts"),
                    boot_id: Some("boot".to_owned()),
                    ..Facts::default()
                };
                outcome.facts = Some(Box::new(facts));
            }),
            NodeOp::System(_) => self.outcome(id, |outcome| {
                let boot_id = Some("boot".to_owned());
                outcome.system = Some(SystemState { boot_id, ..SystemState::default() });
            }),
            _ => self.outcome(id, |_| {}),
        }
    }

    fn attack(&mut self, id: u64) -> io::Result<()> {
        let blob = |sha256: String| Blob { sha256, size: 1 << 40 };
        match self.mode.as_str() {
            "elements" => self.raw(id, &format!("{{\"x\":[0{}]}}", ",0".repeat((FULL - 1024) / 2))),
            "small-elements" => self.raw(id, &format!("{{\"x\":[0{}]}}", ",0".repeat(100_000))),
            "keys" => {
                let keys: Vec<String> = (0..900_000).map(|n| format!("\"{n:x}\":0")).collect();
                self.raw(id, &format!("{{{}}}", keys.join(",")))
            }
            "lists" => self.raw(id, &format!("{{\"x\":[[]{}]}}", ",[]".repeat((FULL - 1024) / 3))),
            "strings" => self.raw(id, &format!("{{\"stdout\":\"{}\"}}", "x".repeat(FULL - 1024))),
            "lines" => self.raw(id, &format!("{{\"stdout\":\"{}\"}}", "\\n".repeat(FULL / 2 - 1024))),
            "megabyte" => self.raw(id, &format!("{{\"stdout\":\"{}\"}}", "x".repeat(1 << 20))),
            "ones" => self.raw(id, &format!("{{\"x\":[[0]{}]}}", ",[0]".repeat((FULL - 1024) / 4))),
            "nesting" => {
                self.raw(id, &format!("{{\"x\":{}{}}}", "[".repeat(4_000_000), "]".repeat(4_000_000)))
            }
            "outcomes" => loop {
                self.raw(id + 1_000_000, "{}")?;
            },
            "duplicates" => loop {
                self.raw(id, "{}")?;
            },
            "contents" => loop {
                self.reply(id, Reply::NeedBlob { stream: 1, blob: blob("0".repeat(64)) })?;
            },
            "long-contents" => loop {
                self.reply(id, Reply::NeedBlob { stream: 1, blob: blob("0".repeat(FULL - 1024)) })?;
            },
            "chatter" => loop {
                self.reply(id, Reply::Progress { text: "y".repeat(32 * 1024) })?;
            },
            "long-chatter" => loop {
                self.reply(id, Reply::Progress { text: "y".repeat(FULL - 1024) })?;
            },
            "error" => self.reply(id, Reply::Error { message: "z".repeat(FULL - 1024) }),
            "drip" => {
                self.out.write_all(&u32::try_from(FULL).unwrap_or(u32::MAX).to_be_bytes())?;
                self.out.write_all(b"J{")?;
                loop {
                    self.out.write_all(b" ")?;
                    self.out.flush()?;
                    sleep(Duration::from_millis(100));
                }
            }
            "small-drip" => {
                self.out.write_all(&1024_u32.to_be_bytes())?;
                self.out.write_all(b"J{")?;
                loop {
                    self.out.write_all(b" ")?;
                    self.out.flush()?;
                    sleep(Duration::from_millis(500));
                }
            }
            "frame" => {
                self.out.write_all(&u32::MAX.to_be_bytes())?;
                self.out.write_all(b"J")?;
                self.out.flush()?;
                Ok(())
            }
            "data" => loop {
                let frame =
                    Frame::Data { stream: 1, bytes: vec![0; FULL] }.encode().map_err(io::Error::other)?;
                self.out.write_all(&frame)?;
            },
            _ => self.outcome(id, |_| {}),
        }
    }

    fn piece(&mut self, id: u64, piece: &ReadPiece) -> io::Result<()> {
        let (size, length): (u64, u64) = match self.mode.as_str() {
            "fetch-endless" => (1 << 50, piece.length),
            "fetch-gibibyte" | "fetch-slow" => (1 << 30, piece.length),
            "fetch-more" => (10, if piece.length == 0 { 0 } else { 1 << 20 }),
            "fetch-less" => (100 << 20, if piece.offset > 4 << 20 { 0 } else { piece.length }),
            _ => (0, 0),
        };
        if self.mode == "fetch-slow" && piece.offset > 0 {
            sleep(Duration::from_millis(500));
        }
        // Four characters of base64 are three bytes.
        let content = match usize::try_from(length).unwrap_or_default() {
            length if length % 3 == 1 => format!("{}AA==", "AAAA".repeat(length / 3)),
            length if length % 3 == 2 => format!("{}AAA=", "AAAA".repeat(length / 3)),
            length => "AAAA".repeat(length / 3),
        };
        self.outcome(id, |outcome| {
            outcome.data.insert("size".to_owned(), json!(size));
            outcome.data.insert("content".to_owned(), json!(content));
            outcome.data.insert("sha256".to_owned(), json!("0".repeat(64)));
        })
    }
}
