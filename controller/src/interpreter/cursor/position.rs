//! Where a host stands in its play, in a form that can be compared with where others stand.

use super::Cursor;
use super::state::{BlockPart, Frame, PlayStage};

/// A place in a play: what is written first is less, and what an include brought in lies between its task and the next one.
///
/// Source: ansible-core 2.19, `StrategyModule._get_next_task_lockstep`: of the tasks that hosts stand before, the first one
/// in the order of the play is done by those who stand there; all others wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(Vec<u32>);

impl Position {
    /// Behind everything.
    pub(in crate::interpreter) fn end() -> Self {
        Self(vec![u32::MAX])
    }
}

impl From<&[u32]> for Position {
    fn from(path: &[u32]) -> Self {
        Self(path.to_vec())
    }
}

impl Cursor {
    /// Where it stands: before the next item of the list on top.
    pub(super) fn position(&self) -> Position {
        Position(self.path(&self.frames))
    }

    /// The end of the part of a block that a failure leaves now; that of the play where nothing takes care of it.
    pub(super) fn end_of_caught(&self) -> Position {
        let catches = |frame: &Frame| match frame {
            Frame::Block { block, part, .. } => match part {
                BlockPart::Body => !block.rescue.is_empty() || !block.always.is_empty(),
                BlockPart::Rescue => !block.always.is_empty(),
                BlockPart::Always => false,
            },
            _ => false,
        };
        let Some(frames) = self.frames.iter().rposition(catches).and_then(|at| self.frames.get(..=at)) else {
            return Position::end();
        };
        let mut path = self.path(frames);
        path.push(u32::MAX);
        Position(path)
    }

    fn path(&self, frames: &[Frame]) -> Vec<u32> {
        let mut path = Vec::with_capacity(frames.len() + 1);
        path.push(rank(self.stage));
        if frames.is_empty() && matches!(self.stage, PlayStage::Tasks(_)) {
            // Why: all that is in the section lies before its end.
            path.push(u32::MAX);
        }
        let mut rest = frames.iter().peekable();
        while let Some(frame) = rest.next() {
            let is_last = rest.peek().is_none();
            match frame {
                Frame::List { next, .. } if is_last => path.push(number(*next)),
                // Why: it is behind the item that it is in.
                Frame::List { next, .. } => path.push(number(next.saturating_sub(1))),
                Frame::Block { part, .. } => path.push(match part {
                    BlockPart::Body => 0,
                    BlockPart::Rescue => 1,
                    BlockPart::Always => 2,
                }),
                Frame::Handlers { pass, last, .. } => path.extend([*pass, number(*last)]),
                Frame::Include { turn, .. } => {
                    // Why: what other turns of the loop brought in waits below.
                    let waits = matches!(rest.peek(), Some(Frame::List { next: 0, .. }));
                    match rest.clone().nth(1) {
                        Some(_) if waits => _ = rest.next(),
                        _ => path.push(number(*turn)),
                    }
                }
                Frame::Task(_) | Frame::Group(_) => {}
            }
        }
        path
    }
}

fn rank(stage: PlayStage) -> u32 {
    let of = |section: usize, step: u32| number(section).saturating_mul(8).saturating_add(step);
    match stage {
        PlayStage::Facts => 0,
        PlayStage::Enter(section) => of(section, 1),
        PlayStage::Tasks(section) => of(section, 2),
        PlayStage::Handlers(section) => of(section, 3),
        PlayStage::VerifyStart(section) => of(section, 4),
        PlayStage::Verify(section) => of(section, 5),
        PlayStage::SectionEnd(section) => of(section, 6),
        PlayStage::Finish => u32::MAX,
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
