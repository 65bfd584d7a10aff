//! From the interpreter's words to those of events and of the rollout.

use crate::{
    event::{Phase, Position, TaskReport, TaskStatus},
    interpreter, playbook,
    rollout::{Amount, Batch},
};

pub(super) fn report(report: interpreter::TaskReport) -> TaskReport {
    TaskReport {
        op_id: report.op_id.to_string(),
        task: report.task,
        kind: report.kind,
        position: Position { file: report.file.to_string(), line: report.line, column: 1 },
        phase: match report.phase {
            interpreter::Phase::Declared => Phase::Declared,
            interpreter::Phase::Reassert => Phase::Reassert,
            interpreter::Phase::Verify => Phase::Verify,
        },
        status: match report.status {
            interpreter::Status::Ok => TaskStatus::Ok,
            interpreter::Status::Changed => TaskStatus::Changed,
            interpreter::Status::Skipped => TaskStatus::Skipped,
            interpreter::Status::Failed => TaskStatus::Failed,
            interpreter::Status::Unreachable => TaskStatus::Unreachable,
            interpreter::Status::Possible => TaskStatus::Possible,
            interpreter::Status::Unknown => TaskStatus::Unknown,
            interpreter::Status::Held => TaskStatus::Held,
        },
        ignored: report.ignored,
        rescued: report.rescued,
        message: report.message,
        item: report.item,
        changes: report.changes,
        awaiting: report.awaiting,
        warnings: report.warnings,
        data: report.data,
    }
}

pub(super) fn amount(amount: playbook::Amount) -> Amount {
    match amount {
        playbook::Amount::Count(count) => Amount::Count(count as usize),
        playbook::Amount::Percent(percent) => Amount::Percent(percent),
    }
}

pub(super) fn batch(wave: &playbook::Wave) -> Batch {
    match wave {
        playbook::Wave::Canary => Batch::Canary,
        playbook::Wave::Count(count) => Batch::Of(Amount::Count(*count as usize)),
        playbook::Wave::Percent(percent) => Batch::Of(Amount::Percent(*percent)),
    }
}
