//! The interface of operations to the rest of the program.
//!
//! Nothing here has a default: an operation that leaves an answer out does not compile. An operation that declares
//! nothing uses [`undeclared!`].

use std::cell::OnceCell;

use crate::{
    NodeOp,
    op::Blob,
    pattern::{LineBreaks, Pattern},
};

/// The effect of an operation on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It can be observed, planned and applied, so that a plan tells exactly what a run does.
    Declares,
    /// Only reads, so that any session may request it at any time.
    Reads,
    /// Changes something, and may be repeated.
    Acts,
    /// Has effects that cannot be predicted, and must not be repeated.
    Once,
}

/// What an operation needs while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs<'a> {
    /// Nothing: it may outlive the controller (`async`).
    Nothing,
    /// The session: for a permit, or because it concerns the session.
    Session,
    /// The session, and content of the controller that the helper may request.
    Content(Vec<&'a Blob>),
}

impl<'a> Needs<'a> {
    /// Returns the content that the helper may request, each as often as the task has it.
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
    /// Anything: its effect is unknown.
    Anything,
    /// Packages of these names, and any file of theirs.
    Packages(&'a [String]),
    /// A systemd unit, and the effects of its processes.
    Unit(&'a str),
    /// The state of GPUs.
    Gpus,
    /// One file.
    File(Claim),
    /// Files and folders; `driver` is whether GPUs lose their state with them.
    Places { paths: Vec<String>, driver: bool },
}

impl Reach<'_> {
    /// Creates the reach of files or folders at these paths.
    pub fn places<const N: usize>(paths: [&str; N]) -> Self {
        Self::Places { paths: paths.map(str::to_owned).to_vec(), driver: false }
    }
}

/// What an operation declares about one file.
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
    /// Some of its lines, identified by content or by marks.
    Lines,
    /// The matches of an expression.
    Matches,
    /// Owner, mode or type.
    Attributes,
    /// That it does not exist.
    Absence,
}

impl Part {
    /// Whether it is a part of a file's text.
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Lines | Self::Matches)
    }
}

/// A later declaration, with its compiled expression.
#[derive(Debug)]
pub struct Newer<'a> {
    pub op: &'a NodeOp,
    expression: OnceCell<Option<Pattern>>,
}

impl<'a> Newer<'a> {
    pub const fn of(op: &'a NodeOp) -> Self {
        Self { op, expression: OnceCell::new() }
    }

    /// Returns its expression, compiled at the first call; `None` if it is invalid.
    pub(crate) fn expression(&self, pattern: &str) -> Option<&Pattern> {
        self.expression.get_or_init(|| Pattern::new("regexp", pattern, LineBreaks::Plain).ok()).as_ref()
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

    /// Returns the node's paths, as the task gives them. Written with [`paths!`].
    fn paths(&self) -> Vec<&String>;

    /// As [`Operation::paths`], for changes.
    fn paths_mut(&mut self) -> Vec<&mut String>;

    fn reach(&self) -> Reach<'_>;

    /// Removes acts such as a restart, and keeps what stays true afterwards; returns `false` if nothing is left.
    fn lasting(&mut self) -> bool;

    /// Removes what a newer declaration declares otherwise; returns `false` if nothing is left. [`Operation::reach`]
    /// has decided before whether a file was written, edited or removed as a whole.
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

/// Implements both methods for an operation's paths from the fields that hold one, if any.
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

/// Implements the methods of an operation that declares nothing.
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
