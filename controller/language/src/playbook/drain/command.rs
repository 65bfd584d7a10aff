//! `drain: command`.

use super::setting::{Block, Described, Hook, Seconds, Setting};
use super::{DrainBlock, DrainerInfo, HookSpans, Login, NOTICE_DEADLINE_S};
use crate::diagnostic::Diagnostic;
use crate::template::Value;

/// Drains by hooks that run on the machine of gpufleet, each a template for a line for `sh -c`.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandDrain {
    pub drain: Value,
    pub is_idle: Value,
    pub resume: Value,
    pub still_ours: Option<Value>,
    /// Prints the nodes that are out, whoever took them out.
    pub out: Option<Value>,
    pub notice: Option<Value>,
    pub timeout_s: u64,
    pub notice_deadline_s: u64,
    pub spans: HookSpans,
}

const DRAIN: Setting<Hook> = Setting::required("drain", Hook, "Keeps new work off the node.");
const IS_IDLE: Setting<Hook> = Setting::required(
    "is_idle",
    Hook,
    "Exits with 0 where nothing runs on the node, and with 1 where something does.",
);
const RESUME: Setting<Hook> = Setting::required("resume", Hook, "Gives the node back.");
const STILL_OURS: Setting<Hook> = Setting::new(
    "still_ours",
    Hook,
    "Exits with 0 while the node is drained by `$GPUFLEET_MARKER`, and with 1 otherwise.",
);
const OUT: Setting<Hook> = Setting::new(
    "out",
    Hook,
    "Prints all nodes that are out of service, of this run or not; run once for all hosts.",
);
const NOTICE: Setting<Hook> = Setting::new("notice", Hook, "Tells the work on the node to get ready to end.");
const TIMEOUT: Setting<Seconds> = Setting::new(
    "timeout",
    Seconds { least: 1, usual: 30 * 60 },
    "How long it may take until the node is idle.",
);
const NOTICE_DEADLINE: Setting<Seconds> = Setting::new(
    "notice_deadline",
    Seconds { least: 1, usual: NOTICE_DEADLINE_S },
    "How long work has after `notice`, before the node is drained.",
);
const SETTINGS: &[&dyn Described] =
    &[&DRAIN, &IS_IDLE, &RESUME, &STILL_OURS, &OUT, &NOTICE, &TIMEOUT, &NOTICE_DEADLINE];

impl DrainBlock for CommandDrain {
    const INFO: DrainerInfo = DrainerInfo {
        word: "command",
        scheduler: None,
        summary: "Drains by commands of your own, which run on this machine.",
        example: "drain: {command: {drain: \"cordon {{ inventory_hostname }}\", \
                  is_idle: \"idle {{ inventory_hostname }}\", resume: \"uncordon {{ inventory_hostname }}\", \
                  still_ours: \"ours {{ inventory_hostname }}\", out: list-out, \
                  notice: \"warn {{ inventory_hostname }}\", timeout: 1h, notice_deadline: 10m}}",
        mistaken: &[],
        program: None,
        has_labels: false,
        reboots: false,
        settings: &[SETTINGS],
    };

    fn read(block: &mut Block<'_, '_>) -> Option<Self> {
        if block.is_bare {
            let error = Diagnostic::error("`drain: command` needs its commands").at(block.at);
            block.error(error.help("write `drain: {command: {drain: …, is_idle: …, resume: …}}`"));
            return None;
        }
        let required = SETTINGS.iter().filter(|setting| setting.is_required());
        let missing: Vec<String> = required
            .filter(|setting| !block.has(setting.name()))
            .map(|setting| format!("`{}`", setting.name()))
            .collect();
        if !missing.is_empty() {
            let error = Diagnostic::error(format!("`drain: command` needs {}", missing.join(", ")));
            block.error(
                error
                    .at(block.at)
                    .label("to drain, to tell whether a node is idle, and to give it back")
                    .help("each is one line for `sh -c` on this machine, such as `drain: \"cordon {{ inventory_hostname }}\"`"),
            );
        }
        let (drain, is_idle, resume) = (block.read(&DRAIN), block.read(&IS_IDLE), block.read(&RESUME));
        let (still_ours, out, notice) = (block.read(&STILL_OURS), block.read(&OUT), block.read(&NOTICE));
        let (timeout_s, notice_deadline_s) = (block.read(&TIMEOUT), block.read(&NOTICE_DEADLINE));
        let deadline = block.node.and_then(|node| node.entry(NOTICE_DEADLINE.name));
        if let Some((key, _)) = deadline.filter(|_| !block.has(NOTICE.name)) {
            block.error(
                Diagnostic::error("`notice_deadline` without `notice`")
                    .at(&key.span)
                    .help("add the command that tells the jobs: `notice: …`"),
            );
        }
        Some(Self {
            drain: drain?,
            is_idle: is_idle?,
            resume: resume?,
            still_ours,
            out,
            notice,
            timeout_s,
            notice_deadline_s,
            spans: block.spans(&["drain", "is_idle", "resume", "still_ours", "out", "notice"]),
        })
    }

    fn login(&self) -> Option<&Login> {
        None
    }

    fn worst_case_s(&self) -> u64 {
        let notice = self.notice.as_ref().map_or(0, |_| self.notice_deadline_s);
        self.timeout_s.saturating_add(notice)
    }

    fn fingerprint(&self) -> Vec<String> {
        let mut texts: Vec<String> =
            [&self.drain, &self.is_idle, &self.resume].into_iter().map(Value::to_text).collect();
        texts.push(self.notice.as_ref().map(Value::to_text).unwrap_or_default());
        texts.push(self.notice_deadline_s.to_string());
        texts
    }
}
