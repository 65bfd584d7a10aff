//! What the program asks about an operation, answered by the operation itself.
//!
//! Nothing here has a default: an operation that leaves an answer out does not compile. What declares nothing says so
//! with [`undeclared!`].

use std::cell::OnceCell;

use regex::bytes::Regex;

use crate::{NodeOp, op::Blob, pattern};

/// What asking for an operation means for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Observe, plan and apply exist for it, so that a plan tells exactly what a run does.
    Declares,
    /// Only reads, so that any session may ask for it at any time.
    Reads,
    /// Changes something that it can change again.
    Acts,
    /// Does what nobody foresees, and never twice.
    Once,
}

/// What an operation needs while it works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs<'a> {
    /// Nothing: it may go on after the controller has gone (`async`).
    Nothing,
    /// The session, for a permit or because it is about the session.
    Session,
    /// The session, and content of the controller that the helper may ask for.
    Content(Vec<&'a Blob>),
}

impl<'a> Needs<'a> {
    /// The content that the helper may ask for, each as often as it stands in the task.
    pub fn content(self) -> Vec<&'a Blob> {
        match self {
            Self::Nothing | Self::Session => Vec::new(),
            Self::Content(blobs) => blobs,
        }
    }
}

/// What an operation may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach<'a> {
    /// Nothing that another task declares.
    Nothing,
    /// Anything: nobody knows what it does.
    Anything,
    /// Packages of these names, and any file of theirs.
    Packages(&'a [String]),
    /// A systemd unit, and whatever its processes do.
    Unit(&'a str),
    /// The state of GPUs.
    Gpus,
    /// One file.
    File(Claim),
    /// Files and folders; `driver` where GPUs lose their state with it.
    Places { paths: Vec<String>, driver: bool },
}

impl Reach<'_> {
    /// Files or folders of these paths.
    pub fn places<const N: usize>(paths: [&str; N]) -> Self {
        Self::Places { paths: paths.map(str::to_owned).to_vec(), driver: false }
    }
}

/// What an operation declares of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Path on the node.
    pub path: String,
    pub part: Part,
}

/// Which part of a file an operation declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of its content.
    Content,
    /// Some of its lines, known by what they are or by marks.
    Lines,
    /// Whatever an expression finds in it.
    Matches,
    /// Owner, mode or type.
    Attributes,
    /// That it does not exist.
    Absence,
}

impl Part {
    /// Whether it is a part of the text of a file.
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Lines | Self::Matches)
    }
}

/// A declaration that came after others, with what was worked out about it.
#[derive(Debug)]
pub struct Newer<'a> {
    pub op: &'a NodeOp,
    expression: OnceCell<Option<Regex>>,
}

impl<'a> Newer<'a> {
    pub const fn of(op: &'a NodeOp) -> Self {
        Self { op, expression: OnceCell::new() }
    }

    /// Its expression, compiled when it is asked for first; none where it cannot be.
    pub(crate) fn expression(&self, pattern: &str) -> Option<&Regex> {
        self.expression.get_or_init(|| pattern::compile("regexp", pattern).ok()).as_ref()
    }
}

/// Whether a path is inside a folder.
pub fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'))
}

/// One operation on a node.
pub trait Operation {
    fn effect(&self) -> Effect;

    fn needs(&self) -> Needs<'_>;

    /// The paths of the node that the task gives, as it gives them. Written with [`paths!`].
    fn paths(&self) -> Vec<&String>;

    /// The same, to be changed.
    fn paths_mut(&mut self) -> Vec<&mut String>;

    fn reach(&self) -> Reach<'_>;

    /// Leaves only what stays true once it is done, without acts such as a restart; false where that is nothing.
    fn lasting(&mut self) -> bool;

    /// Takes out what a newer declaration declares otherwise; false where nothing is left. That a file was written,
    /// edited or removed as a whole is judged before, from [`Operation::reach`].
    fn yields(&mut self, newer: &Newer<'_>) -> bool;
}

/// Fields that hold paths.
pub trait Paths {
    fn all(&self) -> impl Iterator<Item = &String>;
    fn all_mut(&mut self) -> impl Iterator<Item = &mut String>;
}

impl Paths for String {
    fn all(&self) -> impl Iterator<Item = &String> {
        std::iter::once(self)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut String> {
        std::iter::once(self)
    }
}

impl Paths for Option<String> {
    fn all(&self) -> impl Iterator<Item = &String> {
        self.iter()
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut String> {
        self.iter_mut()
    }
}

impl Paths for Vec<String> {
    fn all(&self) -> impl Iterator<Item = &String> {
        self.iter()
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut String> {
        self.iter_mut()
    }
}

/// Both readings of an operation's paths: the fields that hold one, if any.
macro_rules! paths {
    ($($field:ident),*) => {
        fn paths(&self) -> Vec<&String> {
            std::iter::empty()$(.chain($crate::operation::Paths::all(&self.$field)))*.collect()
        }

        fn paths_mut(&mut self) -> Vec<&mut String> {
            std::iter::empty()$(.chain($crate::operation::Paths::all_mut(&mut self.$field)))*.collect()
        }
    };
}

/// The answers of an operation that declares nothing.
macro_rules! undeclared {
    ($reach:ident) => {
        fn reach(&self) -> $crate::operation::Reach<'_> {
            $crate::operation::Reach::$reach
        }

        fn lasting(&mut self) -> bool {
            false
        }

        fn yields(&mut self, _: &$crate::operation::Newer<'_>) -> bool {
            true
        }
    };
}

pub(crate) use {paths, undeclared};
