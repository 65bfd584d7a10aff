//! Sums over the nodes of a run. Every screen and document takes them from here, so that all of them agree.

use super::{NodeModel, RunModel, Verdict};

/// What the nodes of a run come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub nodes: usize,
    pub compliant: usize,
    /// Nodes by verdict, in the order of [`Verdict::WORST_FIRST`].
    by_verdict: [usize; Verdict::WORST_FIRST.len()],
    pub judgements: Judgements,
    /// Nodes that checks were to judge, and whose signals were not read.
    pub unread: usize,
}

/// How much of what applies was judged: tasks of playbooks and checks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgements {
    pub made: usize,
    /// Those that the audit set out to make.
    pub asked: usize,
    /// Those beside them whose readings it did not take, or that need an earlier reading.
    pub not_yet: usize,
    /// Those of them that need an earlier reading.
    pub no_earlier: usize,
}

impl Totals {
    pub fn of(model: &RunModel) -> Self {
        let verb = model.verb();
        let mut totals = Self::default();
        for node in model.nodes() {
            totals.nodes += 1;
            totals.compliant += usize::from(node.is_compliant(verb));
            totals.unread += usize::from(node.awaits_health && node.health.is_none());
            let verdict = node.verdict(verb);
            for (count, of) in totals.by_verdict.iter_mut().zip(Verdict::WORST_FIRST) {
                *count += usize::from(of == verdict);
            }
            let Judgements { made, asked, not_yet, no_earlier } = node.judgements(model);
            totals.judgements.made += made;
            totals.judgements.asked += asked;
            totals.judgements.not_yet += not_yet;
            totals.judgements.no_earlier += no_earlier;
        }
        totals
    }

    /// Returns the number of nodes with each verdict, the worst first.
    pub fn verdicts(&self) -> impl DoubleEndedIterator<Item = (Verdict, usize)> {
        Verdict::WORST_FIRST.into_iter().zip(self.by_verdict)
    }

    /// Returns the number of nodes with this verdict.
    pub fn with(&self, verdict: Verdict) -> usize {
        self.verdicts().find(|(of, _)| *of == verdict).map_or(0, |(_, count)| count)
    }
}

impl NodeModel {
    /// Returns how much of what applies to it was judged.
    pub fn judgements(&self, model: &RunModel) -> Judgements {
        let tasks = self.judged(model.verb());
        let checks = self.health.as_ref().map(|health| &health.verdict.coverage);
        Judgements {
            made: tasks.judged() + checks.map_or(0, |checks| checks.judged),
            asked: tasks.tasks() + checks.map_or(0, |checks| checks.asked()),
            not_yet: checks.map_or(0, |checks| checks.not_yet),
            no_earlier: checks.map_or(0, |checks| checks.no_earlier),
        }
    }
}
