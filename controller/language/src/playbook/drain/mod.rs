//! The drainers of `rollout`: who keeps work off a node while it is disturbed.
//!
//! A drainer is one file here and one line in [`drainers!`] below; gpufleet's `drain` module has one file for each that
//! makes it from its declaration. Parser, messages, schema and reference derive from the registry. Must not know how a
//! node is drained.

mod command;
mod kubectl;
mod kubernetes;
mod none;
mod setting;
mod slurm;

use std::fmt;

pub use self::command::CommandDrain;
pub use self::kubectl::KubectlDrain;
pub use self::kubernetes::{EvictionRules, KubernetesDrain, OnMigManager};
pub use self::none::NoDrain;
use self::setting::{Block, Described};
pub use self::setting::{SettingInfo, Shape};
pub use self::slurm::{Notice, NoticeHow, SlurmDrain};
use super::parse::Parser;
use crate::diagnostic::{Diagnostic, Span};
use crate::yaml::Node;

/// How long jobs have after a notice unless the play says otherwise.
const NOTICE_DEADLINE_S: u64 = 5 * 60;

/// What a drainer is, beside the declaration of one play. It has no defaults: a drainer that leaves an answer out does not
/// compile.
#[derive(Debug)]
pub struct DrainerInfo {
    /// As it is written in a playbook.
    pub word: &'static str,
    /// The scheduler as people call it; `None` where no scheduler is asked.
    pub scheduler: Option<&'static str>,
    /// One sentence, third person.
    pub summary: &'static str,
    /// A `drain` that parses, with every setting.
    pub example: &'static str,
    /// Words that people write for it.
    pub mistaken: &'static [&'static str],
    /// The program that runs on a `login` host.
    pub program: Option<&'static str>,
    /// Whether labels of its nodes can name failure domains.
    pub has_labels: bool,
    /// Whether it can reboot nodes (`reboot: {via: WORD}`).
    pub reboots: bool,
    /// In groups, which drainers may share.
    settings: &'static [&'static [&'static dyn Described]],
}

impl DrainerInfo {
    /// Its settings, in the order of the reference.
    pub fn settings(&self) -> Vec<SettingInfo> {
        self.described().map(Described::info).collect()
    }

    /// Whether the word alone is a whole declaration.
    pub fn stands_alone(&self) -> bool {
        !self.described().any(Described::is_required)
    }

    fn described(&self) -> impl Iterator<Item = &'static dyn Described> {
        self.settings.iter().copied().flatten().copied()
    }
}

/// The declaration of one drainer in a play.
trait DrainBlock: Sized {
    const INFO: DrainerInfo;

    /// Reads what stands below the word; `None` where it is wrong, which was reported.
    fn read(block: &mut Block<'_, '_>) -> Option<Self>;

    /// The host of the inventory that runs the scheduler's programs.
    fn login(&self) -> Option<&Login>;

    /// How long a node may take from the cordon to idle, a notice's deadline included, in seconds.
    fn worst_case_s(&self) -> u64;

    /// The texts that identify how it drains: durations that were measured hold for the same ones only.
    fn fingerprint(&self) -> Vec<String>;
}

/// The registry of drainers: a line here, a file below and a file in gpufleet's `drain` module make one.
macro_rules! drainers {
    ($($drainer:ident($block:ty);)+) => {
        /// Who keeps work off a node while it is disturbed.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Drain { $($drainer($block)),+ }

        /// Every drainer, in the order of the reference.
        pub static DRAINERS: &[DrainerInfo] = &[$(<$block as DrainBlock>::INFO),+];

        /// How each is read, in the same order.
        const READERS: &[fn(&mut Block<'_, '_>) -> Option<Drain>] =
            &[$(|block| <$block as DrainBlock>::read(block).map(Drain::$drainer)),+];

        impl Drain {
            /// What the drainer is.
            pub fn info(&self) -> &'static DrainerInfo {
                match self { $(Self::$drainer(_) => const { &<$block as DrainBlock>::INFO }),+ }
            }

            /// The host of the inventory that runs the scheduler's programs.
            pub fn login(&self) -> Option<&Login> {
                match self { $(Self::$drainer(block) => block.login()),+ }
            }

            /// How long a node may take from the cordon to idle, a notice's deadline included, in seconds.
            pub fn worst_case_s(&self) -> u64 {
                match self { $(Self::$drainer(block) => block.worst_case_s()),+ }
            }

            /// The texts that identify how it drains: durations that were measured hold for the same ones only.
            pub fn fingerprint(&self) -> Vec<String> {
                match self { $(Self::$drainer(block) => block.fingerprint()),+ }
            }
        }
    };
}

drainers! {
    None(NoDrain);
    Slurm(SlurmDrain);
    Kubernetes(KubernetesDrain);
    Kubectl(KubectlDrain);
    Command(CommandDrain);
}

impl Drain {
    /// As it is written in a playbook.
    pub fn as_str(&self) -> &'static str {
        self.info().word
    }

    /// Whether nobody is asked to keep work off.
    pub const fn is_none(&self) -> bool {
        matches!(self, Self::None(_))
    }

    /// Reads the value of `drain`.
    pub(super) fn read(parser: &mut Parser<'_>, node: &Node) -> Self {
        Self::written(parser, node).unwrap_or_default()
    }

    fn written(parser: &mut Parser<'_>, node: &Node) -> Option<Self> {
        if let Some(word) = node.as_str() {
            let (_, reader) = found(parser, word, &node.span)?;
            return reader(&mut Block { parser, node: None, at: &node.span, is_bare: true });
        }
        let (key, value) = match node.as_map() {
            Some([(key, value)]) => (key, value),
            Some([_, (second, _), ..]) => {
                parser.error(
                    Diagnostic::error("`drain` names more than one drainer")
                        .at(&second.span)
                        .label("the second")
                        .help("write one, with its settings below it: `drain: {slurm: {timeout: 2h}}`"),
                );
                return None;
            }
            _ => {
                parser.error(node.wrong_type("`drain`", &one_of(&words())).help(EXAMPLE));
                return None;
            }
        };
        let (info, reader) = found(parser, &key.key_text(), &key.span)?;
        let names: Vec<&str> = info.described().map(Described::name).collect();
        let node = match names.is_empty() {
            true => {
                if !value.is_null() && value.as_map().is_none_or(|entries| !entries.is_empty()) {
                    let word = info.word;
                    parser.error(
                        Diagnostic::error(format!("`{word}` has no settings"))
                            .at(&value.span)
                            .help(format!("write `drain: {word}`")),
                    );
                }
                None
            }
            false if parser.settings(value, &format!("`{}`", info.word), &names) => Some(value),
            false if value.is_null() => None,
            false => return None,
        };
        reader(&mut Block { parser, node, at: &key.span, is_bare: false })
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self::None(NoDrain)
    }
}

impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

const EXAMPLE: &str = "for example `drain: none` or `drain: {slurm: {timeout: 2h}}`";

type Reader = fn(&mut Block<'_, '_>) -> Option<Drain>;

/// The drainer of this word; `None` where there is none, which was reported.
fn found(parser: &mut Parser<'_>, word: &str, at: &Span) -> Option<(&'static DrainerInfo, Reader)> {
    let known = DRAINERS.iter().zip(READERS).find(|(info, _)| info.word == word);
    if known.is_none() {
        let error = Diagnostic::error(format!("unknown drainer `{word}`")).at(at).label(one_of(&words()));
        let meant = DRAINERS.iter().find(|info| info.mistaken.contains(&word));
        parser.error(match meant {
            Some(info) => error.help(format!("write `drain: {}`", info.word)),
            None => error.suggest(word, words()).help(EXAMPLE),
        });
    }
    known.map(|(info, reader)| (info, *reader))
}

fn words() -> Vec<&'static str> {
    DRAINERS.iter().map(|info| info.word).collect()
}

/// `a, b or c`.
pub(super) fn one_of(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        words => words.concat(),
    }
}

/// A host of the inventory that runs a scheduler's programs, and where that is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Login {
    pub host: String,
    pub span: Span,
}

/// Where the templates of a drainer are written, for whoever renders them.
#[derive(Clone, Debug, Default)]
pub struct HookSpans(Vec<(&'static str, Span)>);

impl HookSpans {
    /// The place of a hook or setting; none where it is not written.
    pub fn of(&self, name: &str) -> Option<&Span> {
        self.0.iter().find_map(|(key, span)| (*key == name).then_some(span))
    }
}

/// Why: two drainers are the same wherever they are written.
impl PartialEq for HookSpans {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
