//! A task's report, from the interpreter's words to those of events.

use crate::{
    event::{Position, TaskReport},
    interpreter,
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
        delegated_to: report.delegated_to,
        awaiting: report.awaiting,
        blockers: report.blockers,
        warnings: report.warnings,
        data: report.data,
    }
}
