//! The nodes as the page has them without its script and on paper.

use serde::Serialize;

use super::{
    super::{NextAction, RunModel, Verdict, fold_names},
    node::brief,
};

/// Nodes with a row of their own.
const MOST_ROWS: usize = 500;

/// The nodes that are not ok with a row each, and the names of the others.
#[derive(Debug, Serialize)]
pub(super) struct Plain {
    rows: Vec<Row>,
    /// Nodes that are not ok and have no row.
    left_out: usize,
    /// Names of the nodes that are ok or not applicable, folded.
    calm: Vec<(Verdict, usize, String)>,
}

#[derive(Debug, Serialize)]
struct Row {
    verdict: Verdict,
    name: String,
    why: String,
    action: NextAction,
}

impl Plain {
    pub(super) fn of(model: &RunModel, verdicts: &[Verdict]) -> Self {
        let verb = model.verb();
        let nodes = || model.nodes().iter().zip(verdicts.iter().copied());
        let mut bad: Vec<_> = nodes().filter(|(_, verdict)| verdict.is_not_ok()).collect();
        bad.sort_by_key(|(_, verdict)| std::cmp::Reverse(*verdict));
        let left_out = bad.len().saturating_sub(MOST_ROWS);
        let row = |(node, verdict): (&super::NodeModel, Verdict)| Row {
            verdict,
            name: node.name.clone(),
            why: brief(node, verb),
            action: node.next_action(verb),
        };
        let calm = [Verdict::Ok, Verdict::Na].into_iter().filter_map(|wanted| {
            let names: Vec<&str> = nodes()
                .filter(|(_, verdict)| *verdict == wanted)
                .map(|(node, _)| node.name.as_str())
                .collect();
            (!names.is_empty()).then(|| (wanted, names.len(), fold_names(&names)))
        });
        Self { left_out, calm: calm.collect(), rows: bad.into_iter().take(MOST_ROWS).map(row).collect() }
    }
}
