//! From the interpreter's words to those of events and of the rollout.

use crate::{
    event::{Position, TaskReport},
    interpreter, playbook,
    rollout::{Amount, Batch},
};

pub(crate) fn report(report: interpreter::TaskReport) -> TaskReport {
    TaskReport {
        op_id: report.op_id.to_string(),
        task: report.task,
        kind: report.kind,
        position: Position { file: report.file.to_string(), line: report.line, column: 1 },
        phase: report.phase,
        status: report.status,
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
