//! A history, runs and certificates for tests.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};

use gpufleet_compliance::{Action, Severity, Verdict};
use gpufleet_history::{Audit, Controls, Found, NodeReading, Place, Store};
use gpufleet_serve::{
    Access, Follow, LiveNode, LiveRun, Mood, RunLine, RunStanding, Runs, RunsError, Site, TlsFiles,
};
use jiff::Timestamp;
use tempfile::TempDir;

pub const TOKEN: &str = "3f0c9a4b7d5e61280f9c3f0c9a4b7d5e";
/// The end of every element that it can be in, an image that acts, and a character that turns text around.
pub const EVIL: &str = "\"'></title></a><img src=x onerror=\"alert(1)\"><script>alert(1)</script>\u{202e}";

/// Day 0 is ten days ago.
fn at(day: i64) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second() + (day - 10) * 86_400).unwrap()
}

fn reading(name: &str, rack: usize, day: i64, findings: Vec<Found>) -> NodeReading {
    let bad = !findings.is_empty();
    NodeReading {
        node: name.to_owned(),
        at: at(day),
        verdict: if bad { Verdict::Fail } else { Verdict::Ok },
        action: if bad { Action::Replace } else { Action::None },
        compliant: !bad,
        score: Some(if bad { 40 } else { 100 }),
        judged: 88,
        applicable: 90,
        groups: vec![format!("rack{rack}"), "training".to_owned()],
        hardware: Some("8x H100 80GB HBM3".to_owned()),
        driver: Some("580.95.05".to_owned()),
        findings,
        controls: Controls {
            judged: vec!["mem.remap_failed".to_owned(), "pcie.width".to_owned()],
            not_judged: Vec::new(),
            complete: true,
        },
        memory: None,
    }
}

pub fn found(control: &str, text: &str) -> Found {
    Found {
        control: control.to_owned(),
        title: format!("Title of {control}"),
        severity: Severity::Critical,
        subject: "GPU 3".to_owned(),
        verdict: Verdict::Fail,
        action: Action::Replace,
        text: text.to_owned(),
        evidence: vec![format!("remap_failed {text}")],
        waived: None,
        explained_by: None,
    }
}

fn audit(day: i64, nodes: Vec<NodeReading>) -> Audit {
    Audit {
        run: if day == 9 { "01JD0000000000000000000001".to_owned() } else { format!("01JC{day:022}") },
        controller: "login1".to_owned(),
        started: at(day),
        finished: at(day),
        playbooks: Vec::new(),
        baselines: vec!["training".to_owned()],
        exit_code: 3,
        nodes,
    }
}

/// Eight nodes in two racks, over ten days: one breaks on the third day, and one has hostile names from the beginning.
pub fn fleet() -> Vec<Audit> {
    let nodes = |day: i64| {
        let node = |at: usize| {
            let (name, rack) = (format!("gpu{at:03}"), if at > 4 { 2 } else { 1 });
            let findings = match (at, day) {
                (7, 3..) => vec![found("mem.remap_failed", "row remapping failed")],
                (7, ..=1) => vec![found("pcie.width", "the link is narrow")],
                _ => Vec::new(),
            };
            reading(&name, rack, day, findings)
        };
        let mut nodes: Vec<NodeReading> = (1..=7).map(node).collect();
        let mut evil = reading(&format!("evil{EVIL}"), 2, day, vec![found("mem.remap_failed", EVIL)]);
        evil.groups.push(EVIL.to_owned());
        evil.hardware = Some(EVIL.to_owned());
        nodes.push(evil);
        nodes
    };
    (0..10).map(|day| audit(day, nodes(day))).collect()
}

/// Three audits of a fleet of this many nodes: each node has two findings, and every fiftieth one more.
pub fn large(count: usize) -> Vec<Audit> {
    let node = |at: usize, day: i64| {
        let mut findings = vec![found("os.swap", "swap is on"), found("pcie.width", "the link is narrow")];
        for finding in &mut findings {
            finding.verdict = Verdict::Warn;
        }
        if at % 50 == 7 {
            findings.push(found("mem.remap_failed", "row remapping failed"));
        }
        let mut reading = reading(&format!("gpu{at:05}"), at / 32, day, findings);
        let verdict = if at % 50 == 7 { Verdict::Fail } else { Verdict::Warn };
        (reading.verdict, reading.compliant) = (verdict, verdict == Verdict::Warn);
        reading
    };
    (7..10).map(|day| audit(day, (0..count).map(|at| node(at, day)).collect())).collect()
}

/// Two runs: one is over, the other one goes on until it is told to end.
pub struct MadeUpRuns {
    state: Arc<Mutex<(RunStanding, String)>>,
    /// The file of the history.
    folder: TempDir,
    pub store: Store,
}

impl MadeUpRuns {
    pub fn advance(&self, state: &str) {
        self.state.lock().unwrap().1 = state.to_owned();
    }

    pub fn end(&self, standing: RunStanding) {
        self.state.lock().unwrap().0 = standing;
    }
}

struct Followed(Arc<Mutex<(RunStanding, String)>>, Option<LiveRun>);

fn line(id: &str, standing: RunStanding) -> RunLine {
    RunLine {
        id: id.to_owned(),
        verb: "run".to_owned(),
        playbooks: vec![format!("site.yaml{EVIL}")],
        baselines: vec!["training".to_owned()],
        started: at(9),
        standing,
        exit_code: (standing == RunStanding::Finished).then_some(0),
        nodes: 3,
        summary: EVIL.to_owned(),
    }
}

impl Follow for Followed {
    fn poll(&mut self) -> Result<Option<LiveRun>, RunsError> {
        let (standing, state) = self.0.lock().unwrap().clone();
        let node = |(at, name): (usize, &str)| LiveNode {
            name: name.to_owned(),
            state: if at == 1 { state.clone() } else { "done".to_owned() },
            mood: Mood::Working,
            doing: EVIL.to_owned(),
            since: None,
            verdict: None,
        };
        let run = LiveRun {
            run: line("01JD0000000000000000000002", standing),
            status: "wave 1/2: 2 done, 1 at work".to_owned(),
            notices: vec![EVIL.to_owned()],
            nodes: ["gpu001", "gpu002", "gpu003"].into_iter().enumerate().map(node).collect(),
        };
        let news = self.1.as_ref() != Some(&run);
        self.1 = Some(run.clone());
        Ok(news.then_some(run))
    }
}

impl Runs for MadeUpRuns {
    fn list(&self, _: Option<&str>, most: usize) -> Vec<RunLine> {
        let ids = ["01JD0000000000000000000002", "01JD0000000000000000000001"];
        ids.iter().filter_map(|id| self.line(id).ok()).take(most).collect()
    }

    fn line(&self, id: &str) -> Result<RunLine, RunsError> {
        match id {
            "01JD0000000000000000000001" => Ok(line(id, RunStanding::Finished)),
            "01JD0000000000000000000002" => Ok(line(id, self.state.lock().unwrap().0)),
            _ => Err(RunsError::NoSuchRun),
        }
    }

    fn report(&self, id: &str) -> Result<String, RunsError> {
        self.line(id)?;
        let policy = "default-src 'none'; script-src 'sha256-AAAA'";
        Ok(format!(
            "<!doctype html><head><meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\"></head>\
             <body><main>the report</main></body>"
        ))
    }

    fn follow(&self, id: &str) -> Result<Box<dyn Follow>, RunsError> {
        self.line(id)?;
        Ok(Box::new(Followed(Arc::clone(&self.state), None)))
    }
}

async fn runs(audits: &[Audit]) -> Arc<MadeUpRuns> {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::at(&Place::file(folder.path().join("history.sqlite"))).await.unwrap();
    for audit in audits {
        store.record(audit).await.unwrap();
    }
    let state = Arc::new(Mutex::new((RunStanding::Running, "connecting".to_owned())));
    Arc::new(MadeUpRuns { state, folder, store })
}

async fn made(audits: &[Audit], access: Access) -> (Site, Arc<MadeUpRuns>) {
    let runs = runs(audits).await;
    assert!(runs.folder.path().exists());
    (Site::new(runs.store.clone(), Arc::<MadeUpRuns>::clone(&runs), access).unwrap(), runs)
}

/// A site of this history, and its runs.
pub async fn site_of(audits: &[Audit]) -> (Site, Arc<MadeUpRuns>) {
    made(audits, Access::new(None, false).unwrap()).await
}

pub async fn site() -> Site {
    site_of(&fleet()).await.0
}

pub async fn with_token() -> Site {
    made(&fleet(), Access::new(Some(TOKEN), false).unwrap()).await.0
}

pub async fn with_certificates() -> Site {
    made(&fleet(), Access::new(None, true).unwrap().with_any_host()).await.0
}

/// An authority, and what it signed for a server and a client.
pub struct Certificates(TempDir);

impl Certificates {
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn tls(&self) -> TlsFiles {
        TlsFiles {
            certificate: self.path("server.pem"),
            key: self.path("server.key"),
            client_ca: Some(self.path("ca.pem")),
        }
    }
}

pub fn certificates() -> Certificates {
    let files = Certificates(tempfile::tempdir().unwrap());
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(files.path("ca.pem"), authority.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(authority, key);
    for name in ["server", "client"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let signed = parameters.signed_by(&key, &issuer).unwrap();
        std::fs::write(files.path(&format!("{name}.pem")), signed.pem()).unwrap();
        std::fs::write(files.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
    files
}
