//! `drain: slurm`.

use super::setting::{Block, FlagForm, Form, LoginHost, NodeName, Seconds, Setting, Shape};
use super::{DrainBlock, DrainerInfo, HookSpans, Login, NOTICE_DEADLINE_S};
use crate::diagnostic::Diagnostic;
use crate::playbook::parse::Parser;
use crate::template::Value;
use crate::yaml::Node;

/// Drains through a Slurm controller.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmDrain {
    /// From the cordon until no job is left.
    pub timeout_s: u64,
    /// A template for the node's name at Slurm.
    pub node: Value,
    /// Where `scontrol` runs; none is the machine of gpufleet.
    pub login: Option<Login>,
    pub notice: Option<Notice>,
    pub spans: HookSpans,
}

/// What jobs are told before their node is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub how: NoticeHow,
    /// How long jobs have after it.
    pub deadline_s: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeHow {
    /// The name of a signal without `SIG`, such as `USR1`.
    Signal(String),
    Requeue,
}

const TIMEOUT: Setting<Seconds> = Setting::new(
    "timeout",
    Seconds { least: 1, usual: 2 * 60 * 60 },
    "How long it may take from the cordon until no job is left.",
);
const NODE: Setting<NodeName> = Setting::new("node", NodeName, "The node's name at Slurm.");
const LOGIN: Setting<LoginHost> = Setting::new(
    "login",
    LoginHost,
    "The host of the inventory where `scontrol` runs; this machine unless it is written.",
);
const NOTICE: Setting<NoticeForm> =
    Setting::new("notice", NoticeForm, "What jobs are told first; nothing unless it is written.");

/// Signals that a job can act on; those that end it at once are no notice.
const SIGNALS: &[&str] = &["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "URG"];
const SIGNAL: Setting<Signal> = Setting::new("signal", Signal, "The signal that jobs get.");
const REQUEUE: Setting<FlagForm> =
    Setting::new("requeue", FlagForm { usual: false }, "Whether jobs go back to the queue.");
const DEADLINE: Setting<Seconds> = Setting::new(
    "deadline",
    Seconds { least: 1, usual: NOTICE_DEADLINE_S },
    "How long jobs have after it, before the drain's own time begins.",
);

impl DrainBlock for SlurmDrain {
    const INFO: DrainerInfo = DrainerInfo {
        word: "slurm",
        scheduler: Some("Slurm"),
        summary: "Drains nodes of Slurm with `scontrol`, and waits until their jobs are over.",
        example: "drain: {slurm: {timeout: 90m, node: \"gpu-{{ inventory_hostname }}\", login: login1, \
                  notice: {signal: USR1, deadline: 10m}}}",
        mistaken: &[],
        program: Some("scontrol"),
        has_labels: false,
        reboots: true,
        settings: &[&[&TIMEOUT, &NODE, &LOGIN, &NOTICE]],
    };

    fn read(block: &mut Block<'_, '_>) -> Option<Self> {
        Some(Self {
            timeout_s: block.read(&TIMEOUT),
            node: block.read(&NODE),
            login: block.read(&LOGIN),
            notice: block.read(&NOTICE),
            spans: block.spans(&[NODE.name]),
        })
    }

    fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    fn worst_case_s(&self) -> u64 {
        let notice = self.notice.as_ref().map_or(0, |notice| notice.deadline_s);
        self.timeout_s.saturating_add(notice)
    }

    fn fingerprint(&self) -> Vec<String> {
        let login = self.login.as_ref().map(|login| &login.host);
        vec![format!("{login:?} {:?}", self.notice)]
    }
}

impl Default for SlurmDrain {
    fn default() -> Self {
        Self {
            timeout_s: TIMEOUT.form.usual(),
            node: NODE.form.usual(),
            login: None,
            notice: None,
            spans: HookSpans::default(),
        }
    }
}

/// `requeue`, `{requeue: true}` or `{signal: NAME}`, with a deadline.
#[derive(Debug)]
struct NoticeForm;

impl Form for NoticeForm {
    type Value = Option<Notice>;

    fn shape(&self) -> Shape {
        use super::Described as _;
        let settings = vec![SIGNAL.info(), REQUEUE.info(), DEADLINE.info()];
        Shape::AnyOf(vec![Shape::Words(&["requeue"]), Shape::Mapping(settings)])
    }

    fn default(&self) -> Option<String> {
        None
    }

    fn usual(&self) -> Option<Notice> {
        None
    }

    fn read(&self, parser: &mut Parser<'_>, _key: &str, node: &Node) -> Option<Option<Notice>> {
        let example = "write `{signal: USR1, deadline: 5m}` or `{requeue: true, deadline: 5m}`";
        if node.as_str() == Some("requeue") {
            return Some(Some(Notice { how: NoticeHow::Requeue, deadline_s: NOTICE_DEADLINE_S }));
        }
        if node.as_map().is_none() {
            parser.error(node.wrong_type("`notice`", "a mapping").help(example));
            return None;
        }
        parser.settings(node, "`notice`", &[SIGNAL.name, REQUEUE.name, DEADLINE.name]);
        let deadline_s = DEADLINE.read(parser, node);
        let requeue = REQUEUE.read(parser, node);
        let how = match (node.entry(SIGNAL.name), requeue) {
            (Some((key, _)), true) => {
                parser.error(
                    Diagnostic::error("`notice` sends a signal or requeues: give one of them")
                        .at(&key.span)
                        .help(example),
                );
                return None;
            }
            (Some(_), false) => NoticeHow::Signal(SIGNAL.read(parser, node)?),
            (None, true) => NoticeHow::Requeue,
            (None, false) => {
                parser.error(
                    Diagnostic::error("`notice` does not say what jobs are told")
                        .at(&node.span)
                        .help(example),
                );
                return None;
            }
        };
        Some(Some(Notice { how, deadline_s }))
    }
}

/// What names of signals may begin with.
const PREFIX: &str = "SIG";

/// The name of a signal, with or without `SIG`.
#[derive(Debug)]
struct Signal;

impl Form for Signal {
    type Value = Option<String>;

    fn shape(&self) -> Shape {
        Shape::Spellings { prefix: PREFIX, words: SIGNALS }
    }

    fn default(&self) -> Option<String> {
        None
    }

    fn usual(&self) -> Option<String> {
        None
    }

    fn read(&self, parser: &mut Parser<'_>, _key: &str, node: &Node) -> Option<Option<String>> {
        let upper = node.as_str().map(str::to_ascii_uppercase);
        let name = upper.as_deref().map(|text| text.strip_prefix(PREFIX).unwrap_or(text));
        if let Some(name) = name.filter(|name| SIGNALS.contains(name)) {
            return Some(Some(name.to_owned()));
        }
        let got = node.scalar_text().unwrap_or_default();
        let error = match node.as_str() {
            Some(_) => {
                Diagnostic::error(format!("`{got}` is no signal that a job could act on")).at(&node.span)
            }
            None => node.wrong_type("`signal`", "the name of a signal"),
        };
        parser.error(
            error.label(SIGNALS.join(", ")).suggest(name.unwrap_or_default(), SIGNALS.iter().copied()),
        );
        None
    }
}
