//! `runs`: what earlier runs left; and what one shows at its end.

use gpufleet::{
    display::{self, PlanView, RunRow},
    event::{HEALTH, ResultScreen},
    journal::{JournalError, list_runs},
    report::RunModel,
};

use super::{
    args::{Format, RunsArgs},
    environment::Environment,
    error::CommandError,
    loading::AD_HOC,
    output::Output,
    resume,
};

impl From<JournalError> for CommandError {
    fn from(error: JournalError) -> Self {
        Self::user(error)
    }
}

pub fn runs(args: &RunsArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let runs = list_runs(&environment.state_dir);
    resume::name_unreadable(&runs, output);
    let rows: Vec<RunRow> = runs
        .readable
        .into_iter()
        .map(|run| RunRow {
            run_id: run.run.to_string(),
            resumable: run.is_unfinished(),
            verb: run.started.verb,
            playbooks: run
                .started
                .playbooks
                .iter()
                .filter(|name| ![AD_HOC, HEALTH].contains(&name.as_str()))
                .cloned()
                .collect(),
            started: Some(run.started_at),
            exit_code: run.finished.as_ref().map(|finished| finished.exit_code),
            nodes: run.started.hosts.len(),
            summary: match (&run.finished, run.running) {
                (Some(finished), _) => finished.summary.clone(),
                (None, true) => "is running".to_owned(),
                (None, false) => "was cut off".to_owned(),
            },
        })
        .collect();
    let text = match args.format {
        Format::Human | Format::Ansible => {
            display::runs_table(&rows, &jiff::tz::TimeZone::system(), &output.style)
        }
        Format::Json | Format::Jsonl => {
            let documents = rows.iter().map(|row| {
                serde_json::json!({
                    "run_id": row.run_id, "verb": row.verb, "playbooks": row.playbooks, "resumable": row.resumable, "started": row.started, "exit_code": row.exit_code,
                    "nodes": row.nodes, "summary": row.summary,
                })
            });
            if args.format == Format::Json {
                gpufleet::visible::json_document(&documents.collect::<Vec<_>>())
                    .map_err(CommandError::internal)?
            } else {
                documents
                    .map(|document| gpufleet::visible::json_line(&document).map_err(CommandError::internal))
                    .collect::<Result<_, _>>()?
            }
        }
    };
    output.data(&text)?;
    Ok(0)
}

/// What a finished run shows, by its verb; a plan in this view.
pub fn screen(model: &RunModel, view: PlanView, output: &Output) -> String {
    match model.verb().info().screen {
        ResultScreen::Recap => {
            let mut text = display::recap(model, &output.style);
            for node in display::explained(model) {
                text.push_str(&display::held_screen(model, node, &output.style));
            }
            text.push_str(&display::failures(model, &output.style));
            text
        }
        ResultScreen::Plan => display::plan_screen(model, view, &output.style),
        ResultScreen::Audit => display::audit_screen(model, &output.style),
    }
}
