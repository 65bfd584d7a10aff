//! A real browser without a window, driven over its debugging pipe.

mod site;

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Time limit of the browser for one step.
const LIMIT: Duration = Duration::from_secs(90);

/// Arguments of every start: a fresh profile, and no network access of its own.
const WORDS: [&str; 7] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
];

/// A browser with one page; dropping it ends both.
pub struct Browser {
    child: Child,
    input: File,
    messages: Receiver<Value>,
    /// Events received while waiting for other answers.
    events: VecDeque<Value>,
    session: String,
    last: u64,
    _folder: TempDir,
}

impl Browser {
    /// Opens a file in a window of this width in pixels.
    ///
    /// # Panics
    /// If the browser does not start, or does not load the file.
    pub fn open(file: &Path, fragment: &str, width: u32) -> Self {
        let folder = tempfile::Builder::new().prefix("gpufleet-page-").tempdir().expect("a folder");
        let pipe = |name: &str| {
            let path = folder.path().join(name);
            let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo");
            assert!(made.success(), "a named pipe");
            path
        };
        let (to, from) = (pipe("to"), pipe("from"));
        // A shell, because the browser uses descriptors 3 and 4.
        let child = Command::new("sh")
            .args(["-c", "exec chromium \"$@\" 3<\"$TO\" 4>\"$FROM\"", "sh", "--remote-debugging-pipe"])
            .args(WORDS)
            .arg(format!("--user-data-dir={}", folder.path().join("user").display()))
            .env("TO", &to)
            .env("FROM", &from)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let input = OpenOptions::new().write(true).open(&to).expect("a pipe to the browser");
        let output = File::open(&from).expect("a pipe from the browser");
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            input,
            messages,
            events: VecDeque::new(),
            session: String::new(),
            last: 0,
            _folder: folder,
        };
        let page = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            browser.call("Target.attachToTarget", json!({"targetId": page["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Log", "Runtime", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(width);
        browser.go(file, fragment);
        browser
    }

    /// Gives the window another width in pixels.
    pub fn resize(&mut self, width: u32) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Prefers light or dark colours.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Lets pages run scripts, or none.
    pub fn allow_scripts(&mut self, allowed: bool) {
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": !allowed}));
    }

    /// Presses a key: a character, or a name such as `ArrowDown`.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "PageDown" => 34,
            "End" => 35,
            "Home" => 36,
            "ArrowUp" => 38,
            "ArrowDown" => 40,
            _ => 0,
        };
        let mut down = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        match key {
            "Enter" => down["text"] = json!("\r"),
            _ if code == 0 => down["text"] = json!(key),
            _ => {}
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code}),
        );
    }

    /// Returns what axe-core finds wrong with the page, a rule and its elements a line. `GPUFLEET_AXE` names its script.
    ///
    /// # Panics
    /// Without that script.
    pub fn violations(&mut self) -> Vec<String> {
        let path = std::env::var_os("GPUFLEET_AXE")
            .expect("GPUFLEET_AXE names axe.min.js of the package axe-core; `make test-systems` sets it");
        let script = std::fs::read_to_string(path).expect("axe-core");
        // Over the debugging pipe, which the page's policy does not bind.
        self.says(&format!("{script};typeof axe.run"));
        let found = self.says(
            "axe.run(document,{resultTypes:['violations']}).then(function(r){return r.violations.map(function(v){\
             return v.id+': '+v.nodes.slice(0,3).map(function(n){return n.html.slice(0,200)+' '+n.failureSummary}).join(' | ')})})",
        );
        let found = found.as_array().expect("a list of rules");
        found.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Loads a file again.
    ///
    /// # Panics
    /// If it does not load.
    pub fn go(&mut self, file: &Path, fragment: &str) {
        // Through another page, because a change of the fragment alone loads nothing.
        for url in ["about:blank".to_owned(), format!("file://{}#{fragment}", file.display())] {
            self.events.retain(|event| event["method"] != "Page.loadEventFired");
            self.call("Page.navigate", json!({"url": url}));
            let begin = Instant::now();
            while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
                let message = self.hear(begin);
                self.events.push_back(message);
            }
        }
    }

    /// Returns the value of an expression in the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn says(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Returns the page's errors, and all its requests to other places.
    pub fn complaints(&mut self) -> Vec<String> {
        // An answer comes after all earlier messages.
        self.says("1");
        let bad = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
            "Log.entryAdded" | "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" => true,
            "Network.requestWillBeSent" => {
                let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
                !url.starts_with("file:") && !url.starts_with("about:")
            }
            _ => false,
        };
        self.events.iter().filter(bad).map(|event| event["params"].to_string()).collect()
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        let answer = self.ask(method, parameters);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Returns the whole answer, which may be an error.
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.input.write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
        let begin = Instant::now();
        loop {
            let message = self.hear(begin);
            if message["id"] == self.last {
                return message;
            }
            self.events.push_back(message);
        }
    }

    fn hear(&self, since: Instant) -> Value {
        match self.messages.recv_timeout(LIMIT.saturating_sub(since.elapsed())) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => panic!("the browser said nothing for {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the browser ended"),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns how many sheets a file has on paper.
///
/// # Panics
/// If the browser does not print it.
pub fn sheets(file: &Path, fragment: &str) -> usize {
    let folder = tempfile::tempdir().expect("a folder");
    let paper = folder.path().join("paper.pdf");
    let printed = Command::new("chromium")
        .args(WORDS)
        .arg(format!("--user-data-dir={}", folder.path().join("user").display()))
        .arg(format!("--print-to-pdf={}", paper.display()))
        .arg(format!("file://{}#{fragment}", file.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("chromium");
    assert!(printed.success(), "{printed}");
    let text = std::fs::read(&paper).expect("a document");
    text.split(|byte| *byte == b'\n').filter(|line| line.ends_with(b"/Type /Page")).count()
}
